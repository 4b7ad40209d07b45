"""Writes a checkpoint for another system: config, safetensors, vocabulary.

    python -m realm_jax.export_weights --to=hf_bert --part=retriever \\
      --output_dir=out/minilm --gin_file=runs/minilm/model.gin \\
      --gin_file=gin/runs/export.gin --gin.MODEL_DIR='"runs/minilm"'

--to=hf_bert writes a BERT directory of Hugging Face: a tower without projection
(BertModel, with the modules.json of sentence-transformers where that says all
of it) or the reader with its masked-LM head (BertForMaskedLM). --to=hf_realm
writes one of transformers' REALM classes: embedder, scorer, encoder (the
knowledge-augmented one), reader, or open_qa.

What `import_weights` reads back is the same, bit for bit. It prints what was
written, and which parameters have no place there.
"""

from collections.abc import Sequence

from absl import flags

from realm_jax import configuration
from realm_jax.conversion import exporting
from realm_jax.conversion.export_plan import TOWERS
from realm_jax.conversion.hugging_face import realm_export as hf_realm_export
from realm_jax.conversion.plan import PARTS

_TO = flags.DEFINE_enum(
  "to", None, exporting.SYSTEMS, "Which system.", required=True
)
_OUTPUT_DIR = flags.DEFINE_string(
  "output_dir", None, "The directory to make.", required=True
)
_PART = flags.DEFINE_enum("part", None, PARTS, "For hf_bert: what to write.")
_MODEL = flags.DEFINE_enum(
  "model", None, hf_realm_export.MODELS, "For hf_realm: which class."
)
_TOWER = flags.DEFINE_enum(
  "tower", None, TOWERS, "Which, where the retriever has two."
)


def main(argv: Sequence[str]) -> None:
  """Runs `conversion.exporting.export_weights` as gin configures it."""
  del argv
  report = configuration.call(
    exporting.export_weights,
    to=_TO.value,
    output_dir=_OUTPUT_DIR.value,
    part=_PART.value,
    model=_MODEL.value,
    tower=_TOWER.value,
  )
  print(report)
  print(f"written: {_OUTPUT_DIR.value}")


if __name__ == "__main__":
  configuration.run(main)
