"""A file read forward through one buffer, with short looks back."""

import contextlib
import os
from collections.abc import Iterator
from typing import IO

from realm_jax.conversion.errors import ConversionError

CHUNK_BYTES = 1 << 20


class ForwardFile:
  """Bytes in order; the buffer is open to a reader that scans it by itself.

  Args:
    file: open for binary reading, and seekable.
    where: what errors call it.
    start: the place in the file to begin at.

  Attributes:
    buffer: some of the file's bytes, from `base` on.
    base: the place in the file of the buffer's first byte.
    at: the place in the buffer of the next byte to be read.
    size: of the whole file.
  """

  def __init__(self, file: IO[bytes], *, where: str, start: int):
    self._file = file
    self._where = where
    self.size = file.seek(0, os.SEEK_END)
    file.seek(start)
    self.buffer, self.base, self.at = b"", start, 0

  @property
  def position(self) -> int:
    """The place in the file of the next byte."""
    return self.base + self.at

  def take(self, size: int) -> bytes:
    """The next bytes.

    Raises:
      ConversionError: the file has fewer.
    """
    missing = size - (len(self.buffer) - self.at)
    if missing > 0:
      # Before memory is claimed: a damaged length may say exabytes.
      if self.position + size > self.size:
        raise ConversionError(
          f"{self._where} is cut short: at byte {self.position} it wants "
          f"{size} more, and ends at {self.size}; copy the file again"
        )
      self._read(max(missing, CHUNK_BYTES))
    taken = self.buffer[self.at : self.at + size]
    self.at += size
    return taken

  def number(self, size: int, *, signed: bool = False) -> int:
    """The next bytes as a little-endian integer."""
    return int.from_bytes(self.take(size), "little", signed=signed)

  def look_ahead(self) -> None:
    """Has a chunk in the buffer, or all that is left of the file."""
    end = self.base + len(self.buffer)
    if len(self.buffer) - self.at < CHUNK_BYTES and end < self.size:
      self._read(CHUNK_BYTES)

  def _read(self, size: int) -> None:
    self.base += self.at
    self.buffer = self.buffer[self.at :] + self._file.read(size)
    self.at = 0

  @contextlib.contextmanager
  def elsewhere(self, position: int) -> Iterator[None]:
    """Reads at another place meanwhile."""
    state, resume = (self.buffer, self.base, self.at), self._file.tell()
    self._file.seek(position)
    self.buffer, self.base, self.at = b"", position, 0
    try:
      yield
    finally:
      self._file.seek(resume)
      self.buffer, self.base, self.at = state
