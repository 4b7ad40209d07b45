"""Files of JSON Lines: plain, or compressed by gzip (.gz) or zstd (.zst)."""

import codecs
import contextlib
import dataclasses
import glob
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, cast

import zstandard
from etils import epath

from realm_jax.corpus.building.sources.documents import (
  Document,
  Removal,
  parse,
)
from realm_jax.corpus.building.sources.input_file import Row
from realm_jax.corpus.errors import InputError
from realm_jax.files.object_store.remote import is_remote


@dataclasses.dataclass(frozen=True)
class JsonLinesFile:
  """One file; see `input_file.InputFile`."""

  name: str
  size: int
  numbers_repeats: bool = False

  def rows(self) -> Iterator[tuple[Row, int]]:
    """Yields lines, of which one is in memory.

    Raises:
      InputError: A compressed file is damaged.
    """
    with contextlib.ExitStack() as stack:
      raw = stack.enter_context(epath.Path(self.name).open("rb"))
      lines = stack.enter_context(self._decompressed(raw))
      is_plain, bytes_read = lines is raw, 0
      try:
        for number, line in enumerate(lines, start=1):
          bytes_read += len(line)
          if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
          yield line, bytes_read if is_plain else raw.tell()
      except (EOFError, OSError, zlib.error, zstandard.ZstdError) as error:
        if is_plain:
          raise
        raise InputError(
          f"{self.name} cannot be decompressed ({error}); fetch or compress it "
          "again"
        ) from error

  def _decompressed(self, raw: IO[bytes]) -> IO[bytes]:
    if self.name.endswith(".gz"):
      return cast(IO[bytes], gzip.open(raw, "rb"))
    if self.name.endswith(".zst"):
      reader = zstandard.ZstdDecompressor().stream_reader(
        raw, read_across_frames=True
      )
      return io.BufferedReader(reader, 1 << 20)
    return raw

  def parse(
    self, row: Row, *, place: str, of_update: bool
  ) -> Document | Removal:
    """Reads a line; raises `InputError` if it is malformed."""
    assert isinstance(row, bytes)
    return parse(row, place=place, of_update=of_update)

  def place(self, number: int) -> str:
    """Returns `file:line`."""
    return f"{self.name}:{number}"


def json_lines_files(patterns: Sequence[str]) -> list[JsonLinesFile]:
  """Returns the files that match the patterns, sorted, each once.

  Raises:
    InputError: A pattern matches no file.
  """
  files: dict[str, JsonLinesFile] = {}
  for pattern in patterns:
    path = epath.Path(pattern)
    found: Iterable[epath.Path] = [path]
    if not is_remote(pattern):
      found = map(epath.Path, glob.glob(pattern, recursive=True))
    elif glob.has_magic(path.name):
      found = path.parent.glob(path.name)
    matched = {
      str(file): JsonLinesFile(str(file), file.stat().length)
      for file in found
      if file.is_file()
    }
    if not matched and path.is_dir():
      raise InputError(
        f"--input={pattern} is a folder; give the files in it: "
        f"--input='{pattern.rstrip('/')}/*.jsonl'"
      )
    if not matched:
      raise InputError(
        f"no file matches --input={pattern}; give JSON Lines files, "
        "tfds:NAME/CONFIG or seqio:MODULE:TASK"
      )
    files |= matched
  return [files[name] for name in sorted(files)]
