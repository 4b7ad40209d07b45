"""Opcodes of a pickle in a file that may lie about its lengths."""

import os
import pickletools
from collections.abc import Iterator
from typing import IO, TypeAlias, cast

from realm_jax.conversion.errors import ConversionError

# The argument of an opcode, as `genops` gives it.
Argument: TypeAlias = bytes | bytearray | str | int | float | None

_CHUNK_BYTES = 1 << 20
# A block of text has about 600 bytes.
_MAX_STRING_BYTES = 1 << 24
# Module and name of whatever numpy's pickles name are shorter.
_MAX_LINE_BYTES = 64


class OpcodeReader:
  """A file as `genops` reads it: in chunks, and never beyond its end.

  Args:
    file: File open for binary reading, which can seek.
    where: Name of the file in errors.
    start: Position of the pickle's first byte.
    chunk_bytes: Number of bytes that are read at a time.

  Attributes:
    size: Size of the whole file in bytes.
  """

  def __init__(
    self,
    file: IO[bytes],
    *,
    where: str,
    start: int,
    chunk_bytes: int = _CHUNK_BYTES,
  ):
    self._file = file
    self._where = where
    self._chunk_bytes = chunk_bytes
    self.size = file.seek(0, os.SEEK_END)
    file.seek(start)
    # The buffer begins at `_start` in the file and is read up to `_at`.
    self._buffer, self._start, self._at = b"", start, 0

  def opcodes(self) -> Iterator[tuple[str, Argument, int]]:
    """Yields names, arguments and positions of the opcodes.

    Raises:
      ConversionError: If the file ends before the pickle does.
      ValueError: If an opcode is unknown, or its argument damaged.
    """
    # `genops` reads, reads lines and asks for positions, and no more.
    file = cast("IO[bytes]", self)
    for opcode, argument, offset in pickletools.genops(file):
      yield opcode.name, argument, cast(int, offset)

  def tell(self) -> int:
    """Returns the position of the next byte in the file."""
    return self._start + self._at

  def read(self, size: int) -> bytes:
    """Returns that many bytes, never fewer."""
    end = self._at + size
    if end > len(self._buffer):
      self._fill(size)
      end = size
    data = self._buffer[self._at : end]
    self._at = end
    return data

  def _fill(self, size: int) -> None:
    # Checked before memory is claimed: a damaged length may say exabytes.
    if self.tell() + size > self.size:
      raise ConversionError(
        f"{self._where} is cut short: at byte {self.tell()} it wants {size} "
        f"more, and ends at {self.size}; copy the file again"
      )
    if size > _MAX_STRING_BYTES:
      raise ValueError(f"a string of {size} bytes")
    rest = self._buffer[self._at :]
    self._buffer = rest + self._file.read(max(size, self._chunk_bytes))
    self._start += self._at
    self._at = 0

  def readline(self) -> bytes:
    """Returns the bytes up to the end of a short line."""
    line = b""
    while not line.endswith(b"\n"):
      line += self.read(1)
      if len(line) > _MAX_LINE_BYTES:
        raise ValueError(f"a name of more than {_MAX_LINE_BYTES} bytes")
    return line
