"""Writes a checkpoint, or the vectors of its snapshot, for another system.

    python -m realm_jax.export_weights --to=sentence_transformers \\
      --model_dir=runs/minilm --output_dir=out/minilm
    python -m realm_jax.export_weights --to=vectors \\
      --model_dir=runs/realm --output_dir=out/vectors

The model is the one that the run keeps, or that of gin files. --to lists what
can be written.

An import has recorded no corpus: with --to=vectors or faiss give --corpus_dir.
CHECKPOINT_STEP=None takes the newest snapshot.

For the others, VOCAB=None takes the vocabulary in MODEL_DIR, which an import
writes, or else that of the corpus, and CHECKPOINT_STEP=best the checkpoint that
`realm_jax.evaluate --follow` has named. --gin_help lists these settings.

`import_weights` reads the same parameters back, bit for bit. The command prints
what was written, and which parameters the other system has no tensors for.
"""

from collections.abc import Sequence
from typing import Any

from absl import flags

from realm_jax.configuration import command_line
from realm_jax.weights import WeightsError
from realm_jax.weights.name_maps import CHOSEN_TOWERS
from realm_jax.weights.registry import TARGETS

command_line.define_run_flags()
_OF_VECTORS = ("vectors", "faiss")
_TO = flags.DEFINE_enum(
  "to",
  None,
  list(TARGETS),
  "What to write.\n"
  + "\n".join(f"{name}: {meaning}." for name, meaning in TARGETS.items()),
  required=True,
)
_OUTPUT_DIR = flags.DEFINE_string(
  "output_dir", None, "Directory to make.", required=True
)
_TOWER = flags.DEFINE_enum(
  "tower", None, [*CHOSEN_TOWERS], "Tower to write, if there are several."
)


def main(argv: Sequence[str]) -> None:
  """Exports the model that gin configures, and prints what was written."""
  del argv
  given: dict[str, Any] = {"output_dir": _OUTPUT_DIR.value, "to": _TO.value}
  name = "vectors" if _TO.value in _OF_VECTORS else "weights"
  if name == "vectors":
    if _TOWER.value is not None:
      raise WeightsError(
        f"--tower={_TOWER.value} is not for --to={_TO.value}; leave it out"
      )
  else:
    given["tower"] = _TOWER.value
  place = f"realm_jax.weights.exporting:export_{name}"
  print(command_line.configured(place, recipe="", **given)())
  print(f"written: {_OUTPUT_DIR.value}")


if __name__ == "__main__":
  command_line.run(main)
