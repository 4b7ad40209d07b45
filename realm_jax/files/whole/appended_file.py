"""A local file that grows by whole records."""

import contextlib
from pathlib import Path

# Bytes that are gathered before they are written.
_BUFFER_BYTES = 8192


class AppendedFile:
  """A file to which records are appended, none of them in part.

  A record that cannot be written, such as on a full disk, is kept in memory
  and written with later ones.
  """

  def __init__(self, path: Path):
    self._file = path.open("ab", buffering=0)
    self._size = self._file.tell()
    self._pending = bytearray()
    # Number of pending bytes from which on they are written.
    self._limit = _BUFFER_BYTES

  def write(self, record: bytes) -> None:
    """Adds a record, which readers see after the next `flush`.

    Raises:
      OSError: The records up to this one could not be written yet.
    """
    self._pending += record
    if len(self._pending) >= self._limit:
      self.flush()

  def flush(self) -> None:
    """Makes all records visible to readers.

    Raises:
      OSError: They could not be written yet.
    """
    rest = memoryview(bytes(self._pending))
    # After a failure, the next record is not yet a reason to try again.
    self._limit = len(rest) + _BUFFER_BYTES
    try:
      while rest:
        rest = rest[self._file.write(rest) :]
    except OSError:
      with contextlib.suppress(OSError):
        self._file.truncate(self._size)
      raise
    self._size += len(self._pending)
    self._pending.clear()
    self._limit = _BUFFER_BYTES

  def close(self) -> None:
    """Flushes, and closes the file.

    Raises:
      OSError: Records could not be written, and are lost.
    """
    try:
      self.flush()
    finally:
      self._file.close()
