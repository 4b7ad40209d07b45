"""Documents read from files of rows, each id once, in order.

Before documents are numbered and split, one process reads every row, at about
300 MB a second. It finds malformed rows and ids that occur again, and cuts
files into slices of some megabytes of consecutive, uncompressed rows. Of plain
files, any process can read any slice. A file that cannot be seeked, such as a
compressed one, is read in order, and the rows of its slices are dealt out.
"""

import abc
import array
import codecs
import contextlib
import dataclasses
import glob
import gzip
import itertools
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import zstandard
from etils import epath
from jaxtyping import Int

from realm_jax.console import Progress
from realm_jax.corpus import InputError
from realm_jax.corpus.documents import Document, Removal, hash63, parse
from realm_jax.corpus.summary import FIRST_ERRORS, BuildSummary
from realm_jax.storage.paths import is_remote

# A line of a file, or the fields of a record.
Row: TypeAlias = bytes | Mapping[str, object]

# Titles of pages that only list other pages, which released REALM left out.
# `drop_titles` calls them "wikipedia".
WIKIPEDIA_TITLES = ("List of", "Index of", "Outline of", "(disambiguation)")

SLICE_BYTES = 8 << 20
_MALFORMED = "malformed lines"
_REPEATED = "repeated ids"
_SKIP = "(--skip_bad_lines continues without such lines)"
# Key of a row that has no id, since it is malformed.
_NO_KEY = -1
# The position of a row: the file's number in the bits above its own.
_ROW_BITS = 40


@dataclasses.dataclass(frozen=True)
class InputFile(abc.ABC):
  """One file of rows, whose order never changes.

  `name` is for messages. If not `numbers_repeats`, an id that occurs again is
  an error; else rows with the same contents get a number.
  """

  name: str

  numbers_repeats: ClassVar[bool] = False

  @property
  def is_seekable(self) -> bool:
    """Whether rows are read from any byte on."""
    return False

  @abc.abstractmethod
  def rows(self, start: int = 0) -> Iterator[Row]:
    """Yields rows, from a byte on if the file can be seeked."""

  @abc.abstractmethod
  def parse(
    self, row: Row, *, place: str, of_update: bool
  ) -> Document | Removal:
    """Reads a row.

    Raises:
      InputError: It is malformed; the message says how, and not where.
    """

  @abc.abstractmethod
  def place(self, number: int) -> str:
    """Names a row, numbered from 1, for messages."""


@dataclasses.dataclass(frozen=True)
class JsonLinesFile(InputFile):
  """A file of JSON Lines: plain, or compressed by gzip (.gz) or zstd (.zst)."""

  @property
  def is_seekable(self) -> bool:
    return not self.name.endswith((".gz", ".zst"))

  def rows(self, start: int = 0) -> Iterator[bytes]:
    """Yields lines, of which one is in memory.

    Raises:
      InputError: A compressed file is damaged.
    """
    with contextlib.ExitStack() as stack:
      raw = stack.enter_context(epath.Path(self.name).open("rb"))
      lines = stack.enter_context(self._decompressed(raw))
      if start:
        lines.seek(start)
      try:
        yield from lines
      except (EOFError, OSError, zlib.error, zstandard.ZstdError) as error:
        if self.is_seekable:
          raise
        raise InputError(
          f"{self.name} cannot be decompressed ({error}); fetch or compress it "
          "again"
        ) from error

  def _decompressed(self, raw: Any) -> Any:
    if self.name.endswith(".gz"):
      return gzip.open(raw, "rb")
    if self.name.endswith(".zst"):
      return contextlib.nullcontext(_lines_of(_zstd_contents(raw)))
    return raw

  def parse(
    self, row: Row, *, place: str, of_update: bool
  ) -> Document | Removal:
    """Reads a line; raises `InputError` if it is malformed."""
    assert isinstance(row, bytes)
    line = row.removeprefix(codecs.BOM_UTF8)
    return parse(line, place=place, of_update=of_update)

  def place(self, number: int) -> str:
    """Returns `file:line`."""
    return f"{self.name}:{number}"


def _zstd_contents(raw: Any) -> Iterator[bytes]:
  """Yields what zstd has compressed, in one frame or in several.

  The library's own reader takes a frame that is cut for the end of the file.

  Raises:
    EOFError: The last frame is cut.
  """
  frame, compressed = None, b""
  while compressed or (compressed := raw.read(1 << 17)):
    frame = frame or zstandard.ZstdDecompressor().decompressobj()
    yield frame.decompress(compressed)
    compressed = frame.unused_data
    if frame.eof:
      frame = None
  if frame is not None:
    raise EOFError("the file ends within a frame")


def _lines_of(contents: Iterable[bytes]) -> Iterator[bytes]:
  """Yields lines with their ends, as files do."""
  rest = b""
  for content in contents:
    *lines, rest = (rest + content).split(b"\n")
    yield from (line + b"\n" for line in lines)
  if rest:
    yield rest


class Slice(NamedTuple):
  """Consecutive rows of a file, by default all of them.

  Attributes:
    file: Number of the file.
    first: Number of the first row in the file, from 1.
    start: Byte with which they begin.
    num_rows: Number of rows.
    limit: Byte with which they end, in the uncompressed file.
    rows: The rows, if they have been dealt out.
  """

  file: int
  first: int = 1
  start: int = 0
  num_rows: int | None = None
  limit: int = 0
  rows: Sequence[Row] | None = None

  @property
  def position(self) -> int:
    """Position of the first row; in order over all files."""
    return (self.file << _ROW_BITS) + self.first


class DocumentSource:
  """The documents of files.

  The arguments are those of `build_corpus`. `files` are in order, and in
  `drop_titles` "wikipedia" is expanded to `WIKIPEDIA_TITLES`. With `of_update`,
  rows are changes: they have ids, and may remove documents. `slice_bytes` is
  about the size of a slice.

  Raises:
    InputError: A pattern matches no file.
  """

  def __init__(
    self,
    inputs: Sequence[str],
    *,
    drop_titles: Sequence[str] = (),
    unescape_html: bool = True,
    skip_bad_lines: bool = False,
    of_update: bool = False,
    slice_bytes: int = SLICE_BYTES,
  ):
    self.inputs = tuple(inputs)
    self.files = _input_files(inputs)
    expanded: list[str] = []
    for text in drop_titles:
      expanded += WIKIPEDIA_TITLES if text == "wikipedia" else (text,)
    self.drop_titles = tuple(text for text in expanded if text)
    # If no titles are dropped, a pattern that matches nothing.
    self._dropped = re.compile(
      "|".join(map(re.escape, self.drop_titles)) or r"(?!)"
    )
    self._unescape_html = unescape_html
    self._skip_bad_lines = skip_bad_lines
    self._of_update = of_update
    self._slice_bytes = slice_bytes

  # --- The pass over ids ------------------------------------------------

  def scan(self, summary: BuildSummary) -> tuple[list[Slice], dict[int, int]]:
    """Reads the ids of all rows, in 32 bytes of memory for each.

    Returns:
      The slices of all files, in order; and by position the rows whose ids
      occur earlier. Those that are left out have the number 0, and are counted
      in `summary` as malformed rows are. Others are documents of their own, and
      are numbered from 1 for each id.

    Raises:
      InputError: A row is malformed or repeats an id, and bad lines are not
        skipped.
    """
    keys, positions = array.array("q"), array.array("q")
    errors: list[tuple[int, str]] = []
    slices: list[Slice] = []
    with Progress("rows read for their ids") as progress:
      for number, file in enumerate(self.files):
        first, start, end, count = 1, 0, 0, 0
        for count, row in enumerate(file.rows(), start=1):
          positions.append((number << _ROW_BITS) + count)
          try:
            keys.append(hash63(self._parse(positions[-1], row).id))
          except InputError as error:
            keys.append(_NO_KEY)
            message = f"{self._place(positions[-1])}: {error}"
            self._refuse(message, _MALFORMED, summary)
            if len(errors) < FIRST_ERRORS:
              errors.append((positions[-1], message))
          end += _row_size(row)
          if end - start >= self._slice_bytes:
            slices.append(Slice(number, first, start, count + 1 - first, end))
            first, start = count + 1, end
          progress.advance()
        if count >= first:
          slices.append(Slice(number, first, start, count + 1 - first, end))
    repeats: dict[int, int] = {}
    for row, before, number in _repeated(np.array(keys, np.int64)):
      position = positions[row]
      if self._file(position).numbers_repeats and not self._of_update:
        repeats[position] = number
        continue
      message = ""
      if len(repeats) < FIRST_ERRORS:
        message = self._describe_repeat(position, positions[before])
        errors.append((position, message))
      self._refuse(message, _REPEATED, summary)
      repeats[position] = 0
    summary.first_errors += [m for _, m in sorted(errors)[:FIRST_ERRORS]]
    return slices, repeats

  def _describe_repeat(self, position: int, earlier: int) -> str:
    """Says which document repeats an id, which takes reading its file."""
    number = position & ((1 << _ROW_BITS) - 1)
    rows = itertools.islice(self._file(position).rows(), number - 1, None)
    entry = self._parse(position, next(rows))
    titled = f" (title {entry.title!r})" if isinstance(entry, Document) else ""
    return (
      f"{self._place(position)} has the same id {entry.id!r}{titled} as "
      f"{self._place(earlier)}; give each document an id of its own, or "
      "drop one (a document without an id gets one from its contents)"
    )

  # --- Documents --------------------------------------------------------

  def entries(
    self, part: Slice, repeats: Mapping[int, int]
  ) -> Iterator[Document | Removal]:
    """Yields what a slice's rows say, without bad ones: see `scan`."""
    rows: Iterable[Row] | None = part.rows
    if rows is None:
      opened = self.files[part.file].rows(part.start)
      rows = itertools.islice(opened, part.num_rows)
    for position, row in enumerate(rows, part.position):
      number = repeats.get(position)
      if number == 0:
        continue
      try:
        entry = self._parse(position, row)
      except InputError:
        # The pass over ids has counted it.
        if not self._skip_bad_lines:
          raise
        continue
      yield entry._replace(id=f"{entry.id}-{number}") if number else entry

  def all_entries(self, summary: BuildSummary) -> Iterator[Document | Removal]:
    """Yields what the rows of all files say, without bad ones: see `scan`."""
    _, repeats = self.scan(summary)
    for file in range(len(self.files)):
      yield from self.entries(Slice(file), repeats)

  def is_dropped(self, document: Document, summary: BuildSummary) -> bool:
    """Returns whether a document's title is dropped, and counts it."""
    dropped = self._dropped.search(document.title)
    if dropped:
      summary.skipped[f"title with {dropped[0]!r}"] += 1
    return dropped is not None

  def refuse(self, message: str, reason: str, summary: BuildSummary) -> None:
    """Raises `InputError`, or counts the row and notes the message."""
    self._refuse(message, reason, summary)
    if len(summary.first_errors) < FIRST_ERRORS:
      summary.first_errors.append(message)

  def _refuse(self, message: str, reason: str, summary: BuildSummary) -> None:
    if not self._skip_bad_lines:
      raise InputError(f"{message} {_SKIP}")
    summary.skipped[reason] += 1

  def _parse(self, position: int, row: Row) -> Document | Removal:
    """Reads a row; raises `InputError`, which says how it is malformed."""
    entry = self._file(position).parse(
      row, place=self._place(position), of_update=self._of_update
    )
    # Offsets that came with a text are of the text as it is.
    if isinstance(entry, Removal) or entry.is_block:
      return entry
    if self._unescape_html:
      entry = entry.unescaped()
    return entry.without_long_words()

  def _place(self, position: int) -> str:
    """Names a row for messages, as `file:line`."""
    return self._file(position).place(position & ((1 << _ROW_BITS) - 1))

  def _file(self, position: int) -> InputFile:
    return self.files[position >> _ROW_BITS]


def _repeated(keys: Int[np.ndarray, " r"]) -> list[tuple[int, int, int]]:
  """Returns rows whose keys occur earlier, where first, and how often."""
  # A stable order keeps equal keys in the order of the input.
  order = np.argsort(keys, kind="stable")
  ordered = keys[order]
  is_again = (ordered[1:] == ordered[:-1]) & (ordered[1:] != _NO_KEY)
  again = np.flatnonzero(is_again) + 1
  firsts = np.searchsorted(ordered, ordered[again])
  found = np.stack([order[again], order[firsts], again - firsts], axis=1)
  return sorted(map(tuple, found.tolist()))


def _row_size(row: Row) -> int:
  """Returns about how many bytes of text a row has."""
  if isinstance(row, bytes):
    return len(row)
  return sum(len(v) for v in row.values() if isinstance(v, (bytes, str)))


def _input_files(inputs: Sequence[str]) -> list[InputFile]:
  """Returns the files of JSON Lines, then those of other sources."""
  others = [name for name in inputs if name.startswith(("tfds:", "seqio:"))]
  patterns = [name for name in inputs if name not in others]
  files: list[InputFile] = [*_json_lines_files(patterns)]
  if others:
    # Imported late: TensorFlow Datasets takes seconds.
    from realm_jax.corpus.seqio_rows import seqio_shards

    files += itertools.chain.from_iterable(map(seqio_shards, others))
  return files


def _json_lines_files(patterns: Sequence[str]) -> list[JsonLinesFile]:
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
      str(file): JsonLinesFile(str(file)) for file in found if file.is_file()
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
