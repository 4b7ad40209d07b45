"""Documents read from files of rows, each id once, in order.

Files are cut into slices of some megabytes of consecutive, uncompressed rows,
which any process can read: those of plain files by seeking. A file that cannot
be seeked, such as a compressed one, is read once, in order, and its slices are
dealt out with their rows.

Before documents are numbered and split, one pass looks at every row. It finds
malformed rows, and ids that occur again.
"""

import codecs
import contextlib
import dataclasses
import glob
import gzip
import io
import itertools
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import (
  IO,
  NamedTuple,
  Protocol,
  TypeAlias,
  TypedDict,
  cast,
  runtime_checkable,
)

import numpy as np
import zstandard
from etils import epath
from jaxtyping import Int

from realm_jax.console.progress import Progress
from realm_jax.corpus.documents import Document, Removal, hash63, parse
from realm_jax.corpus.errors import InputError
from realm_jax.corpus.summary import FIRST_ERRORS, BuildSummary
from realm_jax.files.object_store.remote import is_remote

# A line of a file, or the fields of a record.
Row: TypeAlias = bytes | Mapping[str, object]

# Titles of pages that only list other pages, which released REALM left out.
# `drop_titles` calls them "wikipedia".
WIKIPEDIA_TITLES = ("List of", "Index of", "Outline of", "(disambiguation)")

_MALFORMED = "malformed lines"
_REPEATED = "repeated ids"
_SKIP = "(--skip_bad_lines continues without such lines)"
# Key of a row that has no id, since it is malformed.
_NO_KEY = -1
# The position of a row: the file's number in the bits above its own.
_ROW_BITS = 40


@runtime_checkable
class InputFile(Protocol):
  """One file of rows; its order and numbers never change."""

  @property
  def name(self) -> str:
    """Name for messages."""
    ...

  @property
  def seekable_bytes(self) -> int:
    """Size of a file that can be read from any row on; 0 for others."""
    ...

  @property
  def numbers_repeats(self) -> bool:
    """Whether rows with the same contents are documents of their own.

    They get a number then. If not, an id that occurs again is an error.
    """
    ...

  def rows(self, start: int = 0, limit: int = 0) -> Iterator[Row]:
    """Yields rows: all of them, or those that begin in a range of bytes."""
    ...

  def parse(
    self, row: Row, *, place: str, of_update: bool
  ) -> Document | Removal:
    """Reads a row.

    Raises:
      InputError: It is malformed; the message says how, and not where.
    """
    ...

  def place(self, number: int) -> str:
    """Names a row, numbered from 1, for messages."""
    ...


@dataclasses.dataclass(frozen=True)
class JsonLinesFile:
  """A file of JSON Lines: plain, or compressed by gzip (.gz) or zstd (.zst)."""

  name: str
  size: int
  numbers_repeats: bool = False

  @property
  def seekable_bytes(self) -> int:
    return 0 if self.name.endswith((".gz", ".zst")) else self.size

  def rows(self, start: int = 0, limit: int = 0) -> Iterator[bytes]:
    """Yields lines, of which one is in memory.

    Raises:
      InputError: A compressed file is damaged.
    """
    with contextlib.ExitStack() as stack:
      raw = stack.enter_context(epath.Path(self.name).open("rb"))
      lines = stack.enter_context(self._decompressed(raw))
      if start:
        lines.seek(start)
      left = limit - start if limit else None
      try:
        for line in lines:
          size = len(line)
          yield line if start else line.removeprefix(codecs.BOM_UTF8)
          start += size
          if left is not None and (left := left - size) <= 0:
            return
      except (EOFError, OSError, zlib.error, zstandard.ZstdError) as error:
        if self.seekable_bytes:
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


class Slice(NamedTuple):
  """Consecutive rows of a file.

  Attributes:
    file: Number of the file.
    index: Number of the slice in the file.
    start: First byte of the rows, in a file that can be seeked.
    limit: End of these bytes; 0 for all rows of the file.
    rows: The rows, if the file cannot be seeked and has several slices.
    first: Number of the first row in the file, from 1.
  """

  file: int
  index: int = 0
  start: int = 0
  limit: int = 0
  rows: Sequence[Row] | None = None
  first: int = 1

  @property
  def name(self) -> str:
    """Names slices in their order."""
    return f"{self.file:06d}-{self.index:08d}"

  @property
  def position(self) -> int:
    """Position of the first row; in order over all files."""
    return (self.file << _ROW_BITS) + self.first


class Scanned(TypedDict):
  """What the pass over ids finds in a slice.

  `slice` has the slice's file, index, start and limit, `num_bytes` counts
  uncompressed text, and `keys` has the hash of each row's id. `malformed` has
  the numbers of rows that cannot be read, from 0, and how they are malformed.
  """

  slice: Sequence[int]
  num_bytes: int
  keys: Sequence[int]
  malformed: Sequence[tuple[int, str]]


class Scan(NamedTuple):
  """What the pass over ids found in all slices, in their order.

  Attributes:
    slices: The slices, without their rows.
    num_bytes: Uncompressed bytes of each of them.
    repeats: By position, the rows whose ids occur earlier. Those that are left
      out have the number 0; others are documents of their own, and are
      numbered from 1 for each id.
  """

  slices: list[Slice]
  num_bytes: list[int]
  repeats: dict[int, int]


class DocumentSource:
  """The documents of files.

  The arguments are those of `build_corpus`. `files` are in order, and in
  `drop_titles` "wikipedia" is expanded to `WIKIPEDIA_TITLES`. With `of_update`,
  rows are changes: they have ids, and may remove documents.

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

  # --- Slices -----------------------------------------------------------

  def slices(self, number: int, slice_bytes: int) -> Iterator[Slice]:
    """Cuts a file into slices of about `slice_bytes` of whole rows."""
    file, index = self.files[number], 0
    if size := file.seekable_bytes:
      start = 0
      with epath.Path(file.name).open("rb") as opened:
        while start < size:
          opened.seek(min(start + slice_bytes, size) - 1)
          opened.readline()
          yield Slice(number, index, start, opened.tell())
          start, index = opened.tell(), index + 1
      return
    rows: list[Row] = []
    left = slice_bytes
    for row in file.rows():
      rows.append(row)
      left -= _row_size(row)
      if left <= 0:
        yield Slice(number, index, rows=rows)
        rows, left, index = [], slice_bytes, index + 1
    if rows:
      yield Slice(number, index, rows=rows)

  def is_dealt(self, number: int) -> bool:
    """Whether a file's slices can only be read in order."""
    return not self.files[number].seekable_bytes

  def _positioned(self, piece: Slice) -> Iterator[tuple[int, Row]]:
    """Yields the rows of a slice with their positions."""
    rows = piece.rows
    if rows is None:
      rows = self.files[piece.file].rows(piece.start, piece.limit)
    return enumerate(rows, piece.position)

  # --- The pass over ids ------------------------------------------------

  def scan(self, piece: Slice) -> Scanned:
    """Reads the ids of a slice's rows."""
    num_bytes, keys, malformed = 0, [], []
    for number, (position, row) in enumerate(self._positioned(piece)):
      num_bytes += _row_size(row)
      try:
        keys.append(hash63(self._parse(position, row).id))
      except InputError as error:
        keys.append(_NO_KEY)
        malformed.append((number, str(error)))
    return Scanned(
      slice=piece[:4], num_bytes=num_bytes, keys=keys, malformed=malformed
    )

  def check(self, scans: Iterable[Scanned], summary: BuildSummary) -> Scan:
    """Finds repeated ids, in 24 bytes of memory for each row.

    `scans` are those of all slices, in order. Rows that are left out are
    counted in `summary`.

    Raises:
      InputError: A row is malformed or repeats an id, and bad lines are not
        skipped.
    """
    found = Scan([], [], {})
    keys: list[Int[np.ndarray, " r"]] = [np.zeros(0, np.int64)]
    errors: list[tuple[int, str]] = []
    first, starts, offsets = 1, [], [0]
    with Progress("rows read for their ids") as progress:
      for scanned in scans:
        file, index, start, limit = scanned["slice"]
        first = first if index else 1
        piece = Slice(file, index, start, limit, first=first)
        for number, error in scanned["malformed"]:
          message = f"{self._place(piece.position + number)}: {error}"
          self._refuse(message, _MALFORMED, summary)
          if len(errors) < FIRST_ERRORS:
            errors.append((piece.position + number, message))
        found.slices.append(piece)
        found.num_bytes.append(scanned["num_bytes"])
        keys.append(np.array(scanned["keys"], np.int64))
        num_rows = len(keys[-1])
        starts.append(piece.position)
        offsets.append(offsets[-1] + num_rows)
        first += num_rows
        progress.advance(num_rows)

    def positions(rows: Int[np.ndarray, " r"]) -> list[int]:
      owners = np.searchsorted(offsets, rows, side="right") - 1
      shifts = np.array(starts or [0]) - np.array(offsets[: len(starts) or 1])
      return (rows + shifts[owners]).tolist()

    rows, earlier, numbers = _repeated_keys(np.concatenate(keys))
    for position, before, number in zip(
      positions(rows), positions(earlier), numbers.tolist(), strict=True
    ):
      file = self.files[position >> _ROW_BITS]
      if file.numbers_repeats and not self._of_update:
        found.repeats[position] = number
        continue
      message = ""
      if len(found.repeats) < FIRST_ERRORS:
        message = self._repeated(position, before)
        errors.append((position, message))
      self._refuse(message, _REPEATED, summary)
      found.repeats[position] = 0
    summary.first_errors += [m for _, m in sorted(errors)[:FIRST_ERRORS]]
    return found

  def _repeated(self, position: int, earlier: int) -> str:
    """Says which document repeats an id, which takes reading its file."""
    number = position & ((1 << _ROW_BITS) - 1)
    rows = self.files[position >> _ROW_BITS].rows()
    entry = self._parse(
      position, next(itertools.islice(rows, number - 1, None))
    )
    titled = f" (title {entry.title!r})" if isinstance(entry, Document) else ""
    return (
      f"{self._place(position)} has the same id {entry.id!r}{titled} as "
      f"{self._place(earlier)}; give each document an id of its own, or "
      "drop one (a document without an id gets one from its contents)"
    )

  # --- Documents --------------------------------------------------------

  def entries(
    self, piece: Slice, repeats: Mapping[int, int]
  ) -> Iterator[Document | Removal]:
    """Yields what a slice's rows say, without bad ones.

    Raises:
      InputError: A row is malformed, and bad lines are not skipped.
    """
    for position, row in self._positioned(piece):
      number = repeats.get(position)
      if number == 0:
        continue
      try:
        entry = self._parse(position, row)
      except InputError as error:
        # The pass over ids has counted it.
        if self._skip_bad_lines:
          continue
        message = f"{self._place(position)}: {error} {_SKIP}"
        raise InputError(message) from error
      yield entry._replace(id=f"{entry.id}-{number}") if number else entry

  def all_entries(self, summary: BuildSummary) -> Iterator[Document | Removal]:
    """Yields what the rows of all files say, after a pass over their ids.

    Bad rows are counted in `summary`; raises as `check` does.
    """
    files = [Slice(number) for number in range(len(self.files))]
    scan = self.check(map(self.scan, files), summary)
    for piece in files:
      yield from self.entries(piece, scan.repeats)

  def documents(
    self, piece: Slice, repeats: Mapping[int, int], summary: BuildSummary
  ) -> Iterator[Document]:
    """Yields a slice's documents, without those whose titles are dropped."""
    for entry in self.entries(piece, repeats):
      # Removals are rows of updates alone.
      if isinstance(entry, Document) and not self.is_dropped(entry, summary):
        yield entry

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
    entry = self.files[position >> _ROW_BITS].parse(
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
    number = position & ((1 << _ROW_BITS) - 1)
    return self.files[position >> _ROW_BITS].place(number)


def _repeated_keys(
  keys: Int[np.ndarray, " r"],
) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
  """Returns rows whose keys occur earlier, where first, and how often."""
  # A stable order keeps equal keys in the order of the input.
  order = np.argsort(keys, kind="stable")
  ordered = keys[order]
  is_again = (ordered[1:] == ordered[:-1]) & (ordered[1:] != _NO_KEY)
  again = np.flatnonzero(is_again) + 1
  firsts = np.searchsorted(ordered, ordered[again])
  in_order = np.argsort(order[again])
  found = order[again], order[firsts], again - firsts
  rows, earlier, numbers = (array[in_order] for array in found)
  return rows, earlier, numbers


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
