"""Lines of files, plain or compressed."""

import array
import bz2
import gzip
import itertools
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import IO, Any

import numpy as np
import zstandard
from etils import epath

from realm_jax.errors import RealmError

# Maximum length of a line in bytes, the same as the size of a corpus shard.
LONGEST_LINE = 64 << 20
_OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError, zstandard.ZstdError)
# Number of bytes to read at once; few for zstd, where a byte may become 32 KiB.
_AT_ONCE, _AT_ONCE_OF_ZSTD = 1 << 17, 1 << 10


def decompressed(path: epath.PathLike) -> PurePath:
  """Returns a file's name without the suffix of its compression."""
  name = PurePath(path)
  compressed = name.suffix in (*_OPENERS, ".zst")
  return name.with_suffix("") if compressed else name


def contents_of(path: epath.PathLike) -> bytes:
  """Returns a file's decompressed contents, up to `LONGEST_LINE` bytes."""
  contents = bytearray()
  for chunk in _chunks(str(path)):
    contents += chunk
    if len(contents) > LONGEST_LINE:
      raise RealmError(
        f"it has over {LONGEST_LINE >> 20} MiB; cut it into files"
      )
  return bytes(contents)


def lines_of(path: epath.PathLike) -> Iterator[bytes]:
  """Yields the lines of a file: plain, or compressed (.gz, .bz2, .xz, .zst).

  Empty lines at the end are left out. A line of over `LONGEST_LINE` bytes is
  truncated to a little more than these, which `read_object` refuses.

  Raises:
    RealmError: The file cannot be decompressed.
  """
  num_empty = 0
  for line in _lines(_chunks(str(path))):
    if line.strip():
      yield from itertools.repeat(b"\n", num_empty)
      num_empty = 0
      yield line
    else:
      num_empty += 1


class IndexedLines:
  """The lines of a plain file, read one by one from the disk, in any order.

  Empty lines at the end are left out. Memory is eight bytes for each line.

  Raises:
    RealmError: The file is compressed, or has a line over `LONGEST_LINE`.
  """

  def __init__(self, path: epath.PathLike):
    self._path = epath.Path(path)
    if decompressed(path) != PurePath(path):
      raise RealmError(
        f"{path} is compressed, and its lines are read in any order; "
        "decompress it first"
      )
    limits, num_lines = array.array("q", [0]), 0
    for number, line in enumerate(_lines(_chunks(str(path))), start=1):
      if len(line) > LONGEST_LINE:
        raise RealmError(
          f"{path} has a line of over {LONGEST_LINE >> 20} MiB; cut what it "
          "holds into several lines"
        )
      limits.append(limits[-1] + len(line))
      if line.strip():
        num_lines = number
    self._starts = np.array(limits[: num_lines + 1], np.int64)

  def __len__(self) -> int:
    return len(self._starts) - 1

  def __getitem__(self, number: int) -> bytes:
    start, limit = self._starts[number : number + 2].tolist()
    with self._path.open("rb") as file:
      file.seek(start)
      return file.read(limit - start)


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
  """Yields the lines of a file that comes in chunks."""
  # Parts of the current line.
  parts, size = list[bytes](), 0
  for chunk in chunks:
    *ends, begun = chunk.split(b"\n")
    for end in ends:
      yield b"".join((*parts, end, b"\n"))
      parts, size = [], 0
    if size <= LONGEST_LINE:
      parts.append(begun)
      size += len(begun)
  if size:
    yield b"".join(parts)


def _chunks(name: str) -> Iterator[bytes]:
  """Yields a file's decompressed contents, in chunks of bounded size."""
  with epath.Path(name).open("rb") as raw:
    kind = Path(name).suffix
    if kind not in (*_OPENERS, ".zst"):
      yield from iter(lambda: raw.read(_AT_ONCE), b"")
      return
    try:
      if kind == ".zst":
        yield from _zstd_chunks(raw)
      else:
        with _OPENERS[kind](raw) as file:
          yield from iter(lambda: file.read(_AT_ONCE), b"")
    except _DAMAGED as error:
      raise RealmError(
        f"{name} cannot be decompressed ({error}); fetch or compress it again"
      ) from error


def _zstd_chunks(raw: IO[Any]) -> Iterator[bytes]:
  """Decompresses zstd data, in one frame or in several.

  The library's own reader treats a truncated frame as the end of the file; this
  raises an `EOFError`.
  """
  frame = None
  while compressed := raw.read(_AT_ONCE_OF_ZSTD):
    while compressed:
      frame = frame or zstandard.ZstdDecompressor().decompressobj()
      yield frame.decompress(compressed)
      compressed = frame.unused_data
      if frame.eof:
        frame = None
  if frame is not None:
    raise EOFError("the file ends within a frame")
