"""Writes a checkpoint, or the vectors of its generation, for another system.

    python -m realm_jax.export_weights --to=hf_bert --part=retriever \\
      --model_dir=runs/minilm --output_dir=out/minilm
    python -m realm_jax.export_weights --to=vectors \\
      --model_dir=runs/realm --output_dir=out/vectors

The model is the one that the run keeps, or that of gin files.

--to=sentence_transformers writes the retriever as a model that the library
sentence-transformers loads: BERT, pooling, BERT's pooler, REALM's projection
with its LayerNorm, and normalization, as far as the retriever has them. The
README.md in the directory says how documents are given to the model. If the
retriever has two towers, --tower chooses one, and each makes a directory.

--to=hf_bert writes a BERT directory of Hugging Face: a tower without projection
(BertModel) or the reader with its masked-LM head (BertForMaskedLM).

--to=vectors writes the vectors of all blocks of a generation: vectors.npy, with
a row for each block, blocks.jsonl, with the id and title of each row, and
vectors.json, which says what they are of. An import has recorded no corpus:
give --corpus_dir. CHECKPOINT_STEP=None takes the newest generation.

For the others, VOCAB=None takes MODEL_DIR/vocab.txt, which an import writes, or
else that of the corpus, and CHECKPOINT_STEP=best the checkpoint that
`realm_jax.evaluate --follow` has named. --gin_help lists these settings.

`import_weights` reads the same parameters back, bit for bit. The command prints
what was written, and which parameters the other system has no tensors for.
"""

from collections.abc import Sequence

from absl import flags

from realm_jax.configuration import command_line
from realm_jax.conversion import vectors
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.planning import PARTS, SYSTEMS, TOWERS

command_line.define_run_flags()
_VECTORS = "vectors"
_TO = flags.DEFINE_enum(
  "to",
  None,
  (*SYSTEMS, _VECTORS),
  "System to export to, or vectors.",
  required=True,
)
_OUTPUT_DIR = flags.DEFINE_string(
  "output_dir", None, "Directory to make.", required=True
)
_PART = flags.DEFINE_enum("part", None, PARTS, "Part to write for hf_bert.")
_TOWER = flags.DEFINE_enum(
  "tower", None, TOWERS, "Tower to write, if the retriever has two."
)
_DTYPE = flags.DEFINE_enum(
  "dtype", None, tuple(vectors.DTYPES), "Type of vectors; by default float32."
)


def main(argv: Sequence[str]) -> None:
  """Exports the model that gin configures, and prints what was written."""
  del argv
  if _TO.value == _VECTORS:
    _refuse(_PART, _TOWER)
    command_line.require_run("")
    report = command_line.call(
      vectors.export_vectors,
      recipe="",
      output_dir=_OUTPUT_DIR.value,
      dtype=_DTYPE.value,
    )
  else:
    _refuse(_DTYPE)
    command_line.require_run("")
    from realm_jax.conversion import exporting

    report = command_line.call(
      exporting.export_weights,
      recipe="",
      output_dir=_OUTPUT_DIR.value,
      to=_TO.value,
      part=_PART.value,
      tower=_TOWER.value,
    )
  print(report)
  print(f"written: {_OUTPUT_DIR.value}")


def _refuse(*given: flags.FlagHolder[str | None]) -> None:
  """Raises `ConversionError` if a flag is given that is not for this export."""
  for flag in given:
    if flag.value is not None:
      raise ConversionError(
        f"--{flag.name}={flag.value} is not for --to={_TO.value}; leave it out"
      )


if __name__ == "__main__":
  command_line.run(main)
