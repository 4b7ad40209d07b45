"""Lists, verifies and prunes the generations of a run.

    python -m realm_jax.generations list --model_dir=runs/realm
    python -m realm_jax.generations verify --model_dir=runs/realm
    python -m realm_jax.generations prune --model_dir=runs/realm --keep=2

`list` says what each generation is, who has it loaded, and which checkpoints
have it in use; `verify` reads every byte, names what is damaged, and then ends
with 1; `prune` removes all but the newest, and none that a process has loaded
or a checkpoint needs.
"""

from collections.abc import Callable, Mapping, Sequence

from absl import app, flags

from realm_jax import configuration
from realm_jax.evaluation import outputs
from realm_jax.generations.store import publisher
from realm_jax.generations.store.inspection import (
  Found,
  Place,
  shown_bytes,
  table,
)

_MODEL_DIR = flags.DEFINE_string(
  "model_dir", None, "The run; its generations are in its generations folder."
)
_GENERATIONS_DIR = flags.DEFINE_string(
  "generations_dir", None, "Where generations lie, if not in MODEL_DIR."
)
_KEEP = flags.DEFINE_integer(
  "keep", 3, "For prune: how many of the newest stay.", lower_bound=1
)
_DRY_RUN = flags.DEFINE_bool(
  "dry_run", False, "For prune: say what would go, and remove nothing."
)
_JSON = flags.DEFINE_string(
  "json", None, "For list and verify: a file to write the same to."
)


def _write_json(place: Place, found: Sequence[Found]) -> None:
  if _JSON.value:
    values = {
      "generations_dir": str(place.generations_dir),
      "generations": [one.to_json() for one in found],
    }
    outputs.write_json(_JSON.value, values)


def _list(place: Place) -> int:
  found = place.look()
  print(table(found))
  _write_json(place, found)
  return 0


def _verify(place: Place) -> int:
  found = place.look(checksums=True)
  for one in found:
    print(f"{one.step}: {one.problem or f'whole, {shown_bytes(one.bytes)}'}")
  _write_json(place, found)
  damaged = [one.step for one in found if one.problem]
  if damaged:
    print(f"{len(damaged)} of {len(found)} cannot be used: {damaged}")
  else:
    print(f"all {len(found)} are whole" if found else "no generation")
  return 1 if damaged else 0


def _prune(place: Place) -> int:
  steps = place.to_prune(keep=_KEEP.value)
  if not _DRY_RUN.value:
    publisher.remove(place.generations_dir, steps)
  verb = "would remove" if _DRY_RUN.value else "removed"
  print(f"{verb} {', '.join(map(str, steps)) or 'nothing'}")
  return 0


_COMMANDS: Mapping[str, Callable[[Place], int]] = {
  "list": _list,
  "verify": _verify,
  "prune": _prune,
}


def main(argv: Sequence[str]) -> int:
  """Does what the first argument says; the exit status."""
  command = _COMMANDS.get(argv[1]) if len(argv) == 2 else None
  if command is None:
    raise app.UsageError(f"want one of {', '.join(_COMMANDS)}")
  return command(Place.of(_MODEL_DIR.value, _GENERATIONS_DIR.value))


if __name__ == "__main__":
  configuration.run(main)
