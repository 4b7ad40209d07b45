"""Paths in a directory of generations, local or on an object store.

generations/00000500/manifest.json   written last; names the folder of its files
generations/00000500/3f2a…/          its files, and those of a build in progress
generations/assignment.json          what the workers are building now
generations/workers/…                which process is which worker
generations/leases/…                 the generations that a process has loaded
generations/refused/00000500         a reader's report that it is damaged

Files are written once and never renamed, so that several hosts can build a
generation on any kind of storage. A directory without a valid manifest is no
generation for a reader.
"""

import re

from etils import epath

from realm_jax.files.object_store import listing

FOLDER = "generations"
MANIFEST = "manifest.json"
ASSIGNMENT = "assignment.json"
WORKERS = "workers"
LEASES = "leases"
DAMAGE_REPORTS = "refused"

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
  """Returns the steps that have a directory, in order.

  Those whose generation is not published, or is being removed, are among them.
  """
  names = listing.names_in(generations_dir)
  return sorted(int(name) for name in names if _STEP.fullmatch(name))
