"""Directories that appear complete, or not at all.

A local directory is prepared as a hidden sibling of its target and then
renamed. A process that is killed leaves the hidden directory, which the next
one that prepares the same target empties. For an object store, which cannot
rename, it is prepared in a temporary folder and uploaded, last the file that
makes it valid.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from absl import logging
from etils import epath

from realm_jax.files.local_disk.scratch import ScratchDirectory
from realm_jax.files.object_store.remote import is_remote, upload_files
from realm_jax.files.whole.durable import sync, sync_tree


class TargetError(ValueError):
  """A path at which no directory can be written, or not now."""


def check_target(path: epath.PathLike) -> None:
  """Raises `TargetError` if no directory can be renamed to `path`."""
  target = epath.Path(path)
  if target.exists() and not target.is_dir():
    raise TargetError(f"{target} is a file; name a directory")
  if os.path.ismount(target):
    raise TargetError(
      f"{target} is the mount point of a disk, which cannot be replaced; name "
      f"a new directory in it, such as {target / 'new'}"
    )


def check_same_disk(path: epath.PathLike) -> None:
  """Raises `TargetError` if files beside a directory are on another disk."""
  target = real_path(path)
  if os.path.ismount(target):
    raise TargetError(
      f"{target} is the mount point of a disk, and new files are prepared "
      "beside it, on another disk, from which they cannot be renamed; move "
      f"its contents to a directory in it, such as {target / 'new'}, and name "
      "that"
    )


def real_path(path: epath.PathLike) -> Path:
  """Resolves symbolic links, so that a rename replaces what they point to."""
  return Path(os.path.realpath(path))


@contextlib.contextmanager
def staging_directory(target: epath.PathLike) -> Iterator[Path]:
  """Makes an empty directory in which to prepare the contents of `target`.

  Locally it is a hidden sibling of the target, which one process at a time
  holds. It is removed when the block ends, unless it was renamed.

  Raises:
    TargetError: Another process prepares the same target.
  """
  if is_remote(target):
    with ScratchDirectory() as scratch:
      yield scratch.path
    return
  path = real_path(target)
  path.parent.mkdir(parents=True, exist_ok=True)
  staging = path.parent / f".{path.name}.building"
  staging.mkdir(exist_ok=True)
  lock = os.open(staging, os.O_RDONLY)
  try:
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise TargetError(
        f"another process is building {path} right now; wait for it, or name "
        "another directory"
      ) from None
    try:
      leftovers = list(staging.iterdir())
      if leftovers:
        logging.info("Removing what a killed process left in %s", staging)
      for leftover in leftovers:
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
      yield staging
    finally:
      # After a rename, another process may have made the next one.
      if staging.exists() and os.path.samestat(
        os.fstat(lock), os.stat(staging)
      ):
        shutil.rmtree(staging, ignore_errors=True)
  finally:
    os.close(lock)


def rename_into_place(
  staging: Path, target: epath.PathLike, *, overwrite: bool = False
) -> None:
  """Makes a prepared local directory durable and renames it to `target`.

  An empty directory there is replaced, and one with files by `overwrite`: then
  there is none for a moment, between two renames.

  Raises:
    OSError: The target has files, and `overwrite` is False.
  """
  path = real_path(target)
  sync_tree(staging)
  replaced = path.parent / f".{path.name}.replaced"
  shutil.rmtree(replaced, ignore_errors=True)
  if overwrite and path.exists():
    path.rename(replaced)
  staging.rename(path)
  sync(path.parent)
  shutil.rmtree(replaced, ignore_errors=True)


def upload_directory(
  source: Path, target: epath.PathLike, *, last: str | None = None
) -> None:
  """Copies all files below a local directory to an object store.

  `last`, relative to `source`, is the file that makes the target valid. It is
  written when all others are there.
  """
  files = (path for path in source.rglob("*") if path.is_file())
  paths = {path.relative_to(source).as_posix() for path in files}
  upload_files(source, sorted(paths - {last}), target)
  if last in paths:
    upload_files(source, [last], target)
