"""Writes a checkpoint for another system: config, safetensors, vocabulary.

    python -m realm_jax.export_weights --to=hf_bert --part=retriever \\
      --model_dir=runs/minilm --output_dir=out/minilm

--to=hf_bert writes a BERT directory of Hugging Face: a tower without projection
(BertModel, with the modules.json of sentence-transformers where that says all
of it) or the reader with its masked-LM head (BertForMaskedLM). --to=hf_realm
writes one of transformers' REALM classes: embedder, scorer, encoder (the
knowledge-augmented one), reader, or open_qa.

`import_weights` reads the same parameters back, bit for bit. The command prints
what was written, and which parameters the other system has no tensors for.
"""

from collections.abc import Sequence

from absl import flags

from realm_jax import configuration
from realm_jax.conversion import exporting
from realm_jax.conversion.hugging_face.exports import REALM_MODELS, TOWERS
from realm_jax.conversion.planning import PARTS

configuration.define_run_flags()
_TO = flags.DEFINE_enum(
  "to", None, exporting.SYSTEMS, "System to export to.", required=True
)
_OUTPUT_DIR = flags.DEFINE_string(
  "output_dir", None, "Directory to make.", required=True
)
_PART = flags.DEFINE_enum("part", None, PARTS, "Part to write for hf_bert.")
_MODEL = flags.DEFINE_enum(
  "model", None, REALM_MODELS, "Class to write for hf_realm."
)
_TOWER = flags.DEFINE_enum(
  "tower", None, TOWERS, "Tower to write, if the retriever has two."
)


def main(argv: Sequence[str]) -> None:
  """Exports the model that gin configures, and prints what was written."""
  del argv
  report = configuration.call(
    exporting.export_weights,
    default_recipe="gin/runs/export.gin",
    output_dir=_OUTPUT_DIR.value,
    to=_TO.value,
    part=_PART.value,
    realm_model=_MODEL.value,
    tower=_TOWER.value,
  )
  print(report)
  print(f"written: {_OUTPUT_DIR.value}")


if __name__ == "__main__":
  configuration.run(main)
