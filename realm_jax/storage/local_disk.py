"""Local disks: full ones, durable writes, temporary directories, arrays."""

import contextlib
import errno
import fcntl
import mmap
import os
import shutil
import stat
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from etils import epath
from numpy.typing import DTypeLike

from realm_jax.errors import RealmError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DiskFullError(RealmError):
  """A disk is full, or a quota is exhausted."""


@contextlib.contextmanager
def explain_full_disk(
  target: epath.PathLike,
  *,
  advice: str = "free some space, or name another directory",
) -> Iterator[None]:
  """Turns the system's error for a full disk or quota into `DiskFullError`.

  The message has the path `target`, which the block writes.
  """
  try:
    yield
  except OSError as error:
    if error.errno not in NO_SPACE:
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


@contextlib.contextmanager
def locked(path: Path, *, waits: bool = False) -> Iterator[None]:
  """Holds the kernel's lock on a path; it is released if the process ends.

  The path is a directory, or a file, which is created if it is missing. Network
  file systems may support only locks on files.

  Raises:
    BlockingIOError: Another process holds the lock, and `waits` is False.
  """
  flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
  descriptor = os.open(path, flags, 0o666)
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    yield
  finally:
    os.close(descriptor)


class ScratchDirectory(contextlib.AbstractContextManager["ScratchDirectory"]):
  """A temporary directory, removed by `close`, with this object, or at exit.

  If the process is killed, the next process that makes such a directory in the
  same folder removes it. The default folder is this user's own in TMPDIR.
  """

  def __init__(self, parent: Path | None = None) -> None:
    parent = _own_scratch_folder() if parent is None else parent
    parent.mkdir(parents=True, exist_ok=True)
    lock = contextlib.ExitStack()
    # Ensures that other processes never find an unlocked directory.
    with locked(parent / ".lock", waits=True):
      for path in [path for path in parent.iterdir() if path.is_dir()]:
        with contextlib.suppress(OSError), locked(_lock_of(path)):
          _remove(path)
      self.path = Path(tempfile.mkdtemp(dir=parent))
      lock.enter_context(locked(_lock_of(self.path)))
    lock.callback(_remove, self.path)
    self._finalizer = weakref.finalize(self, lock.close)

  def close(self) -> None:
    """Removes the directory. Memory maps of its files stay readable."""
    self._finalizer()

  def __exit__(self, *exception: object) -> None:
    self.close()


def _own_scratch_folder() -> Path:
  """Returns a folder in TMPDIR that this user owns and nobody else can enter.

  Another user may have created the expected name, or a link with it.
  """
  parent = Path(tempfile.gettempdir()) / f"realm_jax-scratch-{os.getuid()}"
  with contextlib.suppress(FileExistsError):
    parent.mkdir(mode=0o700, parents=True)
  status = parent.lstat()
  is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
  if is_own and not status.st_mode & 0o077:
    return parent
  return Path(tempfile.mkdtemp(prefix=f"{parent.name}-"))


def _lock_of(scratch: Path) -> Path:
  return scratch.with_name(f"{scratch.name}.lock")


def _remove(scratch: Path) -> None:
  shutil.rmtree(scratch, ignore_errors=True)
  _lock_of(scratch).unlink(missing_ok=True)


def save_array(path: Path, array: np.ndarray) -> None:
  """Writes a `.npy` file; on a full disk, `np.save`'s error has no code."""
  header = np.lib.format.header_data_from_array_1_0(array)
  with path.open("wb") as file:
    np.lib.format.write_array_header_1_0(file, header)
    file.write(np.ascontiguousarray(array).view(np.uint8).data)


def create_mapped_array(
  path: Path, dtype: DTypeLike, shape: tuple[int, ...]
) -> np.memmap:
  """Creates a memory-mapped `.npy` file with its disk space allocated.

  If the disk is full, this raises an `OSError`. Without allocated space, as in
  NumPy's own files, writing to the map would kill the process with a signal.
  """
  array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
  with path.open("r+b") as file:
    os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
  return array


def drop_pages(part: np.ndarray) -> None:
  """Frees the memory that holds the pages of a slice of a mapped file.

  The next access reads them from the file again. Arrays other than read-only
  slices of a mapped file are left alone.
  """
  owner: object = part
  while isinstance(owner, np.ndarray):
    owner = owner.base
  # Dropping the pages of a writable private map would lose written data.
  if isinstance(owner, mmap.mmap) and not part.flags.writeable:
    owner.madvise(mmap.MADV_DONTNEED)
