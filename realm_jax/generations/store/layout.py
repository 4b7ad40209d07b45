"""Where generations lie, and which of them are published.

generations/00000500/manifest.json   a published generation
generations/00000500/build-…         its files, on an object store
generations/.shards-00000500-…       vectors that builders are at together
generations/.tmp-00000500-…          one that is being built, …
generations/.tmp-00000500-….lock     … locked by the process that does
generations/.replaced-00000500-…     one whose successor is being put in place
generations/.trash-…                 one that is being removed
generations/.commit.lock             locked while one is put in place or removed
generations/leases/…                 who has which loaded
generations/refused/00000500         a reader found it damaged
"""

import re

from etils import epath

FOLDER = "generations"
MANIFEST = "manifest.json"
LEASES = "leases"
REFUSED = "refused"
SHARING = ".shards-"
BUILDING = ".tmp-"
REPLACING = ".replaced-"
REMOVING = ".trash-"

_STEP = re.compile(r"[0-9]{8,}")


def is_remote(path: epath.PathLike) -> bool:
  """Whether the path lies on an object store, which cannot rename or map."""
  return "://" in str(path)


def path_of(generations_dir: epath.PathLike, step: int) -> epath.Path:
  """The directory of a checkpoint step's generation."""
  return epath.Path(generations_dir) / f"{step:08d}"


def published_steps(generations_dir: epath.PathLike) -> list[int]:
  """The steps that have a manifest, in order; whether it is valid is not asked.

  A missing directory has none.
  """
  return [
    step
    for step in all_steps(generations_dir)
    if (path_of(generations_dir, step) / MANIFEST).exists()
  ]


def all_steps(generations_dir: epath.PathLike) -> list[int]:
  """The steps that have a folder, in order, whatever is in it."""
  try:
    names = [path.name for path in epath.Path(generations_dir).iterdir()]
  except (FileNotFoundError, NotADirectoryError):
    return []
  return sorted(int(name) for name in names if _STEP.fullmatch(name))
