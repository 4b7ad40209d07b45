"""Local disks: full ones, durable writes and temporary directories."""

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from etils import epath

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Names in the folder of a `ScratchDirectory`.
_LOCK = ".lock"
_FILES = "files"


class DiskFullError(ValueError):
  """A disk or a quota that has no space left for what is being written."""


@contextlib.contextmanager
def explain_full_disk(
  target: epath.PathLike,
  *,
  advice: str = "free some space, or name another directory",
) -> Iterator[None]:
  """Turns the system's error for a full disk or quota into `DiskFullError`.

  The message names `target`, which the block writes. Where that is on an object
  store, the full disk is the one of a temporary directory.
  """
  try:
    yield
  except OSError as error:
    if error.errno not in _NO_SPACE:
      raise
    raise DiskFullError(
      f"the disk of {error.filename or target} is full ({error.strerror}), so "
      f"{target} was not written: {advice}"
    ) from error


def sync(path: Path) -> None:
  """Writes a file, or the names in a directory, from memory to the disk."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def sync_tree(directory: Path) -> None:
  """Writes all files and directories below a directory to the disk."""
  for path in directory.rglob("*"):
    sync(path)
  sync(directory)


class ScratchDirectory:
  """A temporary directory, removed by `close`, with this object, or at exit.

  If the process is killed, the next one that makes such a directory in the same
  folder removes it. The default folder is one of this user in TMPDIR.
  """

  def __init__(self, parent: Path | None = None) -> None:
    if parent is None:
      parent = Path(tempfile.gettempdir()) / f"realm_jax-{os.getuid()}"
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _remove_abandoned(parent)
    folder = Path(tempfile.mkdtemp(dir=parent))
    unlocked = folder / f"{_LOCK}.new"
    lock = unlocked.open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    # Other processes never find it unlocked.
    unlocked.rename(folder / _LOCK)
    self.path = folder / _FILES
    self.path.mkdir()
    self._finalizer = weakref.finalize(self, _remove, folder, lock)

  def close(self) -> None:
    """Removes the directory. What is mapped from it stays readable."""
    self._finalizer()

  def __enter__(self) -> "ScratchDirectory":
    return self

  def __exit__(self, *exception: object) -> None:
    self.close()


def _remove(folder: Path, lock: IO[str]) -> None:
  # The lock goes last: without it, nobody finishes what a killed process began.
  shutil.rmtree(folder / _FILES, ignore_errors=True)
  shutil.rmtree(folder, ignore_errors=True)
  lock.close()


def _remove_abandoned(parent: Path) -> None:
  """Removes the directories of processes that are gone."""
  for folder in parent.iterdir():
    # Without a lock, the process that makes it has not locked it yet.
    with contextlib.suppress(OSError), (folder / _LOCK).open("r+") as lock:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
      _remove(folder, lock)
