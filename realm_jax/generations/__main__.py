"""Lists, verifies and prunes the generations of a run.

    python -m realm_jax.generations list --model_dir=runs/realm
    python -m realm_jax.generations verify --model_dir=runs/realm
    python -m realm_jax.generations prune --model_dir=runs/realm --keep=2

`list` describes each generation, and names the checkpoints at which it was in
use. `verify` reads all bytes, names what is damaged, and then exits with 1.
`prune` removes old generations, but none that a checkpoint needs; their files
stay for a day, as processes may have them loaded.
"""

import dataclasses
from collections.abc import Sequence

from absl import app, flags

from realm_jax.configuration import command_line
from realm_jax.generations.inspection import inspect, open_run, table
from realm_jax.generations.manifest import GenerationError
from realm_jax.storage.json_files import write_json

_MODEL_DIR = flags.DEFINE_string(
  "model_dir", None, "Directory of the run, which has a generations folder."
)
_GENERATIONS_DIR = flags.DEFINE_string(
  "generations_dir", None, "Directory of the generations, if not in MODEL_DIR."
)
_KEEP = flags.DEFINE_integer(
  "keep", 3, "For prune: number of the newest that stay.", lower_bound=1
)
_DRY_RUN = flags.DEFINE_bool(
  "dry_run", False, "For prune: print what would go, and remove nothing."
)
_JSON = flags.DEFINE_string(
  "json", None, "For list and verify: file to write the same to, as JSON."
)


def main(argv: Sequence[str]) -> int:
  """Runs the command that the first argument names; returns its exit status."""
  commands = ("list", "verify", "prune")
  if len(argv) != 2 or (command := argv[1]) not in commands:
    raise app.UsageError(f"want one of {', '.join(commands)}")
  with open_run(_MODEL_DIR.value, _GENERATIONS_DIR.value) as (store, uses):
    if command == "prune":
      if uses is None:
        raise GenerationError(
          f"no run is known whose checkpoints need {store.directory}. Give "
          "--model_dir, too"
        )
      steps = store.prunable(keep=_KEEP.value, pinned=uses.pinned())
      if not _DRY_RUN.value:
        store.remove(steps)
      verb = "would remove" if _DRY_RUN.value else "removed"
      print(f"{verb} {', '.join(map(str, steps)) or 'nothing'}")
      return 0
    statuses = inspect(store, uses, checksums=command == "verify")
  if _JSON.value:
    write_json(_JSON.value, list(map(dataclasses.asdict, statuses)))
  print(table(statuses))
  damaged = [one.step for one in statuses if one.problem]
  if command == "list":
    return 0
  print(
    f"{len(damaged)} of {len(statuses)} cannot be used: {damaged}"
    if damaged
    else f"all {len(statuses)} are valid"
  )
  return 1 if damaged else 0


if __name__ == "__main__":
  command_line.run(main, takes_texts=True)
