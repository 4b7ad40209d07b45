"""Lists, verifies and prunes the generations of a run.

    python -m realm_jax.generations list --model_dir=runs/realm
    python -m realm_jax.generations verify --model_dir=runs/realm
    python -m realm_jax.generations prune --model_dir=runs/realm --keep=2

`list` describes each generation, and names the checkpoints at which it was in
use. `verify` reads all bytes, names what is damaged, and then exits with 1.
`prune` removes old generations, but none that a checkpoint needs; their files
stay for a day, as processes may have them loaded.
"""

from collections.abc import Callable, Mapping, Sequence

from absl import app, flags
from tqdm import tqdm

from realm_jax.configuration import command_line
from realm_jax.generations.inspection import (
  GenerationStatus,
  RunGenerations,
  table,
)
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


def _inspect(run: RunGenerations, *, checksums: bool) -> list[GenerationStatus]:
  statuses = run.inspect(checksums=checksums)
  if _JSON.value:
    values = {
      "generations_dir": str(run.store.directory),
      "generations": [one.to_json() for one in statuses],
    }
    write_json(_JSON.value, values)
  return statuses


def _list(run: RunGenerations) -> int:
  print(table(_inspect(run, checksums=False)))
  return 0


def _verify(run: RunGenerations) -> int:
  statuses = _inspect(run, checksums=True)
  for one in statuses:
    size = tqdm.format_sizeof(one.bytes, "B")
    print(f"{one.step}: {one.problem or f'valid, {size}'}")
  damaged = [one.step for one in statuses if one.problem]
  if damaged:
    print(f"{len(damaged)} of {len(statuses)} cannot be used: {damaged}")
  else:
    print(f"all {len(statuses)} are valid" if statuses else "no generation")
  return 1 if damaged else 0


def _prune(run: RunGenerations) -> int:
  steps = run.prunable(keep=_KEEP.value)
  if not _DRY_RUN.value:
    run.store.remove(steps)
  verb = "would remove" if _DRY_RUN.value else "removed"
  print(f"{verb} {', '.join(map(str, steps)) or 'nothing'}")
  return 0


_COMMANDS: Mapping[str, Callable[[RunGenerations], int]] = {
  "list": _list,
  "verify": _verify,
  "prune": _prune,
}


def main(argv: Sequence[str]) -> int:
  """Runs the command that the first argument names; returns its exit status."""
  command = _COMMANDS.get(argv[1]) if len(argv) == 2 else None
  if command is None:
    raise app.UsageError(f"want one of {', '.join(_COMMANDS)}")
  return command(RunGenerations(_MODEL_DIR.value, _GENERATIONS_DIR.value))


if __name__ == "__main__":
  command_line.run(main, takes_texts=True)
