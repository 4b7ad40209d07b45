"""Paths in a directory of generations.

generations/00000500/manifest.json   a published generation
generations/00000500/build-…         its files, on an object store
generations/.shards-00000500-…       vectors that several workers embed together
generations/.tmp-00000500-…          a generation that is being written
generations/.tmp-00000500-….lock     locked by the process that writes it
generations/.replaced-00000500-…     one whose successor is put in its place
generations/.trash-…                 one that is being deleted
generations/.commit.lock             locked while one is renamed
generations/leases/…                 the generations that a process has loaded
generations/refused/00000500         a reader's report that it is damaged
"""

import re

from etils import epath

FOLDER = "generations"
MANIFEST = "manifest.json"
LEASES = "leases"
DAMAGE_REPORTS = "refused"
SHARED_SHARDS = ".shards-"
BUILDING = ".tmp-"
REPLACED = ".replaced-"
TRASH = ".trash-"
COMMIT_LOCK = ".commit.lock"

_STEP = re.compile(r"[0-9]{8,}")


def path_of(generations_dir: epath.PathLike, step: int) -> epath.Path:
  """Returns the directory of a checkpoint step's generation."""
  return epath.Path(generations_dir) / f"{step:08d}"


def published_steps(generations_dir: epath.PathLike) -> list[int]:
  """Returns the steps that have a manifest, valid or not, in order."""
  return [
    step
    for step in all_steps(generations_dir)
    if (path_of(generations_dir, step) / MANIFEST).exists()
  ]


def all_steps(generations_dir: epath.PathLike) -> list[int]:
  """Returns the steps that have a directory, in order."""
  try:
    names = [path.name for path in epath.Path(generations_dir).iterdir()]
  except (FileNotFoundError, NotADirectoryError):
    return []
  return sorted(int(name) for name in names if _STEP.fullmatch(name))
