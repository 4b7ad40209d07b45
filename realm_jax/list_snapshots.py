"""Lists, verifies and prunes the snapshots of a run.

    python -m realm_jax.list_snapshots list --model_dir=runs/realm
    python -m realm_jax.list_snapshots verify --model_dir=runs/realm
    python -m realm_jax.list_snapshots prune --model_dir=runs/realm --keep=2

`list` describes each snapshot, with the checkpoints that use it. `verify` reads
all bytes, and if any are damaged, says which and exits with 1. `prune` removes
old snapshots, except those that a checkpoint needs. Their files are kept for a
day, because processes may still have them loaded.
"""

import dataclasses
from collections.abc import Sequence

from absl import flags

from realm_jax.checkpoints.store import FOLDER, CheckpointStore
from realm_jax.configuration import command_line
from realm_jax.console import columns, json_flag
from realm_jax.errors import RealmError
from realm_jax.snapshots.manifest import Manifest, SnapshotError
from realm_jax.snapshots.store import SnapshotStore, SnapshotUses, directory_of
from realm_jax.storage.access import require_readable

_MODEL_DIR = flags.DEFINE_string(
  "model_dir", None, "Directory of the run, with a snapshots folder."
)
_SNAPSHOTS_DIR = flags.DEFINE_string(
  "snapshots_dir", None, "Directory of the snapshots, if not in MODEL_DIR."
)
_KEEP = flags.DEFINE_integer(
  "keep", 3, "For prune: number of newest snapshots to keep.", lower_bound=1
)
_DRY_RUN = flags.DEFINE_bool(
  "dry_run", False, "For prune: only print what would be removed."
)
_write_json = json_flag(
  "For list and verify: file for the same output as JSON."
)


@dataclasses.dataclass(frozen=True)
class _Status:
  """A snapshot, with the checkpoints that use it.

  If the snapshot cannot be used, `problem` says why.
  """

  step: int
  manifest: Manifest | None
  checkpoints: Sequence[int]
  problem: str


def main(argv: Sequence[str]) -> int:
  """Runs the command in the first argument; returns the exit status."""
  commands = ("list", "verify", "prune")
  if len(argv) != 2 or (command := argv[1]) not in commands:
    raise RealmError(
      f"the arguments are {argv[1:]}; want one of {', '.join(commands)}"
    )
  model_dir, snapshots_dir = _MODEL_DIR.value, _SNAPSHOTS_DIR.value
  if model_dir is None and snapshots_dir is None:
    raise SnapshotError("give --model_dir, --snapshots_dir, or both")
  require_readable(model_dir, snapshots_dir)
  folder = directory_of(model_dir or "", snapshots_dir)
  if not folder.is_dir():
    raise SnapshotError(
      f"there is no folder {folder}; `realm_jax.build_index` makes one when "
      "it publishes its first snapshot"
    )
  if model_dir is None and (folder.parent / FOLDER).is_dir():
    model_dir = folder.parent
  store = SnapshotStore(folder)
  uses = SnapshotUses(CheckpointStore(model_dir)) if model_dir else None
  if command == "prune":
    if uses is None:
      raise SnapshotError(
        f"the run whose checkpoints use {store.directory} is unknown; also "
        "give --model_dir"
      )
    steps = store.prunable(keep=_KEEP.value, pinned=uses.pinned())
    if not _DRY_RUN.value:
      store.remove(steps)
    verb = "would remove" if _DRY_RUN.value else "removed"
    print(f"{verb} {', '.join(map(str, steps)) or 'nothing'}")
    return 0
  statuses = _inspect(store, uses, checksums=command == "verify")
  _write_json(list(map(dataclasses.asdict, statuses)))
  print(_table(statuses))
  if command == "list":
    return 0
  if damaged := [one.step for one in statuses if one.problem]:
    print(f"{len(damaged)} of {len(statuses)} cannot be used: {damaged}")
    return 1
  print(f"all {len(statuses)} are valid")
  return 0


def _inspect(
  store: SnapshotStore, uses: SnapshotUses | None, *, checksums: bool
) -> list[_Status]:
  """Returns the status of every snapshot; always compares at least sizes."""
  used = uses.of() if uses else {}
  statuses = []
  for step in store.steps():
    manifest, problem = None, ""
    try:
      manifest = store.manifest(step)
      store.verify(step, checksums=checksums)
    except SnapshotError as error:
      problem = str(error)
    users = [at for at, snapshots in used.items() if step in snapshots]
    statuses.append(_Status(step, manifest, users, problem))
  return statuses


def _table(statuses: Sequence[_Status]) -> str:
  """Returns a table of the snapshots, followed by their problems."""
  if not statuses:
    return "no snapshot"
  header = "step blocks corpus index recall size created used_at"
  rows: list[Sequence[str]] = [header.split()]
  for status in statuses:
    described = ["?"] * 6
    if (manifest := status.manifest) is not None:
      recall = [f"@{k} {value:.3f}" for k, value in manifest.recall.items()]
      size = sum(file.size for file in manifest.files)
      described = [
        f"{manifest.num_blocks:,}",
        f"v{manifest.corpus_version} {manifest.corpus_fingerprint[:8]}",
        manifest.index_kind,
        " ".join(recall) or "–",
        f"{size / 1e6:,.1f} MB",
        manifest.created,
      ]
    step = f"{status.step}{' !' if status.problem else ''}"
    users = ", ".join(map(str, status.checkpoints)) or "–"
    rows.append([step, *described, users])
  problems = [
    f"{status.step}: {status.problem}" for status in statuses if status.problem
  ]
  return "\n".join([columns(rows), *problems])


if __name__ == "__main__":
  command_line.run(main, takes_texts=True)
