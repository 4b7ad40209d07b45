"""Locks between processes; a lock ends with its process."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
  """Locks a file, which is created if needed; yields whether it is locked.

  Without `wait`, it is not where another process has the lock.

  Raises:
    FileNotFoundError: The directory of the file is gone.
  """
  with path.open("a") as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
      is_locked = True
    except BlockingIOError:
      is_locked = False
    yield is_locked
