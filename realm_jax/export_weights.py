"""Exports a checkpoint, or the vectors of its snapshot, to another system.

    python -m realm_jax.export_weights --to=sentence_transformers \\
      --model_dir=runs/minilm --output_dir=out/minilm
    python -m realm_jax.export_weights --to=vectors \\
      --model_dir=runs/realm --output_dir=out/vectors

The model is the one recorded in the run, or the one in gin files. The help for
--to lists the formats.

With --to=vectors or faiss, CHECKPOINT_STEP=None takes the newest snapshot. An
imported MODEL_DIR has no record of its corpus, so pass --corpus_dir.

With other formats, VOCAB=None takes the vocabulary in MODEL_DIR, which an
import writes, or else the corpus's. CHECKPOINT_STEP=best takes the checkpoint
that `realm_jax.evaluate --follow` found best. --gin_help lists these settings.

`import_weights` reads the same parameters back, bit for bit. The command prints
what it wrote, and which parameters have no tensors in the other system.
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
  "Format to write.\n"
  + "\n".join(f"{name}: {meaning}." for name, meaning in TARGETS.items()),
  required=True,
)
_OUTPUT_DIR = flags.DEFINE_string(
  "output_dir", None, "Directory to create.", required=True
)
_TOWER = flags.DEFINE_enum(
  "tower", None, [*CHOSEN_TOWERS], "Tower to export, if there are several."
)


def main(argv: Sequence[str]) -> None:
  """Exports the configured model, and prints a report."""
  del argv
  arguments: dict[str, Any] = {"output_dir": _OUTPUT_DIR.value, "to": _TO.value}
  name = "vectors" if _TO.value in _OF_VECTORS else "weights"
  if name == "vectors":
    if _TOWER.value is not None:
      raise WeightsError(
        f"--tower={_TOWER.value} is not for --to={_TO.value}; leave it out"
      )
  else:
    arguments["tower"] = _TOWER.value
  place = f"realm_jax.weights.exporting:export_{name}"
  print(command_line.configured(place, recipe="", **arguments)())
  print(f"written: {_OUTPUT_DIR.value}")


if __name__ == "__main__":
  command_line.run(main)
