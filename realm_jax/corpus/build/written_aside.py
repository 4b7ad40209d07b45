"""Local directories that are filled under a hidden name, and then renamed.

A process that is killed leaves the hidden directory, which the next one that
writes the same target clears away.
"""

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from absl import logging
from etils import epath

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_place(path: epath.Path, error_type: type[Exception]) -> None:
  """Raises an error where no directory can take the path's place."""
  if path.exists() and not path.is_dir():
    raise error_type(f"{path} is a file; name a directory")
  if os.path.ismount(path):
    raise error_type(
      f"{path} is where a disk is mounted, which nothing can take the place "
      f"of; name a new directory in it, such as {path / 'new'}"
    )


def check_beside(path: Path, error_type: type[Exception]) -> None:
  """Raises an error where no file from beside the path can be moved into it.

  Args:
    path: a `real_path`, of a directory.
    error_type: what is raised.
  """
  if os.path.ismount(path):
    raise error_type(
      f"{path} is where a disk is mounted, and what is written beside it, on "
      f"another disk, cannot be moved into it; move what it holds to a new "
      f"directory in it, such as {path / 'new'}, and name that"
    )


def real_path(path: epath.PathLike) -> Path:
  """Where a rename must lead, so that symbolic links to it stay."""
  return Path(os.path.realpath(path))


@contextlib.contextmanager
def written_aside(target: Path, error_type: type[Exception]) -> Iterator[Path]:
  """Gives an empty hidden directory beside `target`, to fill and to rename.

  Args:
    target: a `real_path`.
    error_type: raised where another process is writing the same target.

  What has not been renamed when the context ends is removed.
  """
  target.parent.mkdir(parents=True, exist_ok=True)
  staging = target.parent / f".{target.name}.building"
  staging.mkdir(exist_ok=True)
  lock = os.open(staging, os.O_RDONLY)
  try:
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise error_type(
        f"another process is building {target} right now; wait for it, or "
        "name another directory"
      ) from None
    try:
      _clear(staging)
      yield staging
    finally:
      # Once renamed, another process may have made the next one.
      if staging.exists() and os.path.samestat(
        os.fstat(lock), os.stat(staging)
      ):
        shutil.rmtree(staging, ignore_errors=True)
  finally:
    os.close(lock)


def _clear(staging: Path) -> None:
  leftovers = list(staging.iterdir())
  if leftovers:
    logging.info("Clearing what a killed build left in %s", staging)
  for path in leftovers:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextlib.contextmanager
def explained_full_disk(
  target: epath.PathLike,
  error_type: type[Exception],
  *,
  advice: str = "free some space, or name another --output_dir",
) -> Iterator[None]:
  """Says of a full disk what it means for the target, and what to do."""
  try:
    yield
  except OSError as error:
    if error.errno not in _NO_SPACE:
      raise
    # A temporary folder's disk, where the target is on an object store.
    raise error_type(
      f"the disk of {error.filename or target} is full; nothing was written "
      f"to {target}: {advice}"
    ) from error
