"""Lines of files, plain or compressed."""

import gzip
import zlib
from collections.abc import Iterator
from typing import IO, Any

import zstandard
from etils import epath

from realm_jax.errors import RealmError

_DAMAGED = (EOFError, OSError, zlib.error, zstandard.ZstdError)


def lines_of(path: epath.PathLike) -> Iterator[bytes]:
  """Yields the lines of a file: plain, or compressed (.gz, .zst).

  Empty lines at its end are left out.

  Raises:
    RealmError: The file cannot be decompressed.
  """
  empty = []
  for line in _all_lines(str(path)):
    if line.strip():
      yield from empty
      empty.clear()
      yield line
    else:
      empty.append(line)


def _all_lines(name: str) -> Iterator[bytes]:
  with epath.Path(name).open("rb") as raw:
    if not name.endswith((".gz", ".zst")):
      yield from raw
      return
    try:
      if name.endswith(".gz"):
        yield from gzip.GzipFile(fileobj=raw)
      else:
        yield from _zstd_lines(raw)
    except _DAMAGED as error:
      raise RealmError(
        f"{name} cannot be decompressed ({error}); fetch or compress it again"
      ) from error


def _zstd_lines(raw: IO[Any]) -> Iterator[bytes]:
  """Yields the lines that zstd has compressed, in one frame or in several.

  The library's own reader takes a frame that is cut for the end of the file;
  this raises `EOFError`.
  """
  frame, rest = None, b""
  while compressed := raw.read(1 << 17):
    while compressed:
      frame = frame or zstandard.ZstdDecompressor().decompressobj()
      *lines, rest = (rest + frame.decompress(compressed)).split(b"\n")
      yield from (line + b"\n" for line in lines)
      compressed = frame.unused_data
      if frame.eof:
        frame = None
  if frame is not None:
    raise EOFError("the file ends within a frame")
  if rest:
    yield rest
