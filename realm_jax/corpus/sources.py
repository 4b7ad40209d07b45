"""Reads the rows of all inputs, in order, each id once.

First, one process reads every row, at about 300 MB a second. It finds malformed
rows and repeated ids, and adds up sizes, which determine where the shards of
the corpus end. Then the rows are read again, and the documents are dealt to the
processes that make blocks.
"""

import array
import bisect
import codecs
import functools
import glob
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from etils import epath

from realm_jax.console import Progress
from realm_jax.corpus import InputError, tables, texts
from realm_jax.corpus.documents import (
  Document,
  Fields,
  Row,
  RowReader,
  hash63,
)
from realm_jax.corpus.link_table import LinkTable
from realm_jax.corpus.links import title_key
from realm_jax.corpus.summary import MOST_LISTED, BuildSummary
from realm_jax.storage.line_files import decompressed, lines_of
from realm_jax.storage.paths import is_remote, sizes_below

# Key of a malformed row, which has no id.
_NO_KEY = -1
# Prefixes of inputs that seqio reads.
_SEQIO = ("tfds:", "seqio:")
# Suffixes of files with many documents. Other files are recognized by their
# first line, or else are texts.
_LINES, _TABLES = (".jsonl", ".ndjson", ".json"), (".tsv", ".parquet", ".arrow")

# Files of texts, or a text itself with the fields of a line of JSON.
Input: TypeAlias = str | Mapping[str, Any]
# Name of such texts in messages, in place of a path.
_TEXTS = "<texts>"

# Function that yields the rows of an input, with their positions.
_Reader: TypeAlias = Callable[[], Iterator[tuple[int, Row]]]


class Piece(NamedTuple):
  """Consecutive documents that form one shard of the corpus."""

  number: int
  documents: list[Document]


class DocumentSource:
  """The documents of `inputs`; the constructor reads all rows once.

  This takes 24 bytes of memory for each row. Afterwards `num_rows`, `num_bytes`
  (in total), `title_keys` (sorted) and `has_links` are known. `summary` counts
  rows with dropped titles and, if bad lines are skipped, rows that are
  malformed or repeat an id. Equal records of a data set without ids become
  separate documents. The links of the file `link_table` are added to documents.

  Raises:
    InputError: A pattern matches no file, or a row is malformed or repeats an
      id and `skip_bad_lines` is False.
  """

  def __init__(
    self,
    inputs: Sequence[Input],
    reader: RowReader,
    *,
    skip_bad_lines: bool = False,
    link_table: epath.PathLike | None = None,
  ):
    self.reader = reader
    self._link_table = LinkTable(link_table) if link_table else None
    self.summary = BuildSummary()
    self._skip_bad_lines = skip_bad_lines
    self._files = _open(inputs, reader.fields, self.summary.skipped)
    # Index, file and number of each row that does not directly follow the
    # previous one.
    self._starts: list[tuple[int, str, int]] = []
    following = ("", 0)
    keys, sizes, titles = (array.array("q") for _ in range(3))
    self.has_links = link_table is not None
    # Indices of rows without a document and, for other rows by index, the
    # number of earlier rows with the same contents.
    self._left_out = set[int]()
    self._repeats: dict[int, int] = {}
    dropped: dict[int, str] = {}
    with Progress("rows read for their ids") as progress:
      for index, (file, number, row) in enumerate(self._rows()):
        if (file, number) != following:
          self._starts.append((index, file, number))
        following = (file, number + 1)
        try:
          document = reader.read(row)
          keys.append(hash63(document.id))
          titles.append(title_key(document.title))
          self.has_links |= bool(document.links)
          if text := reader.dropped(document):
            dropped[index] = text
        except InputError as error:
          self._left_out.add(index)
          keys.append(_NO_KEY)
          self.refuse(f"{file}:{number}: {error}", "malformed lines")
        sizes.append(_size(row))
        progress.advance()
    self._sizes = np.array(sizes, np.int64)
    self.title_keys = np.unique(np.array(titles, np.int64))
    self.num_rows, self.num_bytes = len(sizes), int(self._sizes.sum())
    self._find_repeats(np.array(keys, np.int64))
    for index, text in dropped.items():
      if index not in self._left_out:
        self.summary.skipped[f"title with {text!r}"] += 1
        # An update removes the documents with their ids.
        if not reader.of_update:
          self._left_out.add(index)

  def _rows(self) -> Iterator[tuple[str, int, Row]]:
    """Yields all rows, with their file and their number in it, from 1."""
    for file, rows in self._files.items():
      for number, row in rows():
        yield file, number, row

  def _find_repeats(self, keys: np.ndarray) -> None:
    # A stable order keeps equal keys in the order of the input.
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    is_again = (ordered[1:] == ordered[:-1]) & (ordered[1:] != _NO_KEY)
    again = np.flatnonzero(is_again) + 1
    firsts = np.searchsorted(ordered, ordered[again])
    repeats = np.stack([order[again], order[firsts], again - firsts], axis=1)
    for index, first, number in sorted(repeats.tolist()):
      place = self._place(index)
      reader = self._files[place.rpartition(":")[0]]
      if getattr(reader, "func", None) is tables.read_contexts:
        self._left_out.add(index)
        self.summary.skipped["paragraphs of several questions"] += 1
        continue
      if place.startswith(_SEQIO) and not self.reader.of_update:
        self._repeats[index] = number
        continue
      self._left_out.add(index)
      self.refuse(
        f"{place} has the same id as {self._place(first)}; give each document "
        "an id of its own, or drop one (a document without an id gets one "
        "from its contents)",
        "repeated ids",
      )

  def _place(self, index: int) -> str:
    before = bisect.bisect(self._starts, index, key=lambda start: start[0]) - 1
    start, file, number = self._starts[before]
    return f"{file}:{number + index - start}"

  def refuse(self, message: str, reason: str) -> None:
    """Raises an `InputError`, or counts a bad row and records the message."""
    if not self._skip_bad_lines:
      raise InputError(
        f"{message} (--skip_bad_lines continues without such lines)"
      )
    self.summary.skipped[reason] += 1
    if len(self.summary.first_errors) < MOST_LISTED:
      self.summary.first_errors.append(message)

  def documents(self, stride: int = 1) -> Iterator[Document]:
    """Yields the documents of every `stride`-th row that is not left out."""
    kept = (
      (index, *row)
      for index, row in enumerate(self._rows())
      if index not in self._left_out
    )
    for index, file, number, row in itertools.islice(kept, 0, None, stride):
      document = self.reader.read(row)._replace(place=f"{file}:{number}")
      if index in self._repeats:
        # Equal contents become separate documents.
        name = f"{document.id}-{self._repeats[index]}"
        document = document._replace(id=name)
      if self._link_table is not None:
        document = self._link_table.attached(document)
      yield document

  def pieces(self, piece_bytes: int) -> Iterator[Piece]:
    """Yields all documents in pieces of about `piece_bytes` each."""
    before = np.cumsum(self._sizes) - self._sizes
    _, numbers = np.unique(before // piece_bytes, return_inverse=True)
    kept = np.delete(numbers, [*self._left_out])
    numbered = zip(kept.tolist(), self.documents(), strict=True)
    for number, pairs in itertools.groupby(numbered, key=lambda pair: pair[0]):
      yield Piece(number, [document for _, document in pairs])


def _size(row: Row) -> int:
  """Returns the approximate number of bytes of text in a row."""
  if isinstance(row, bytes):
    return len(row)
  if isinstance(row, InputError):
    return 0
  return sum(len(v) for v in row.values() if isinstance(v, (bytes, str)))


# --- Files --------------------------------------------------------------


def named(inputs: Sequence[Input]) -> list[str]:
  """Returns the inputs that name files, and are no texts themselves."""
  for source in inputs:
    if not isinstance(source, (str, Mapping)):
      raise InputError(
        f"{source!r} is no input; give files as strings, or texts as "
        '{"title": …, "text": …}'
      )
  return [source for source in inputs if isinstance(source, str)]


def _open(
  inputs: Sequence[Input], fields: Sequence[str], skipped: Counter[str]
) -> dict[str, _Reader]:
  """Returns the readers of all inputs: files, sorted, then others."""
  names = named(inputs)
  # The folder of each file; document ids are paths relative to it.
  files: dict[str, str] = {}
  for pattern in names:
    if not pattern.startswith(_SEQIO):
      files |= _matches(pattern, skipped)
  readers: dict[str, _Reader] = {
    name: _reader(name, folder, fields)
    for name, folder in sorted(files.items())
  }
  for source in names:
    if source.startswith(_SEQIO):
      # Imported late, because TensorFlow Datasets takes seconds.
      from realm_jax.inputs import seqio_rows

      for number, shard in enumerate(seqio_rows.shards(source)):
        readers[f"{source} shard {number}"] = functools.partial(
          _numbered, shard
        )
  if rows := [Fields(one) for one in inputs if not isinstance(one, str)]:
    readers[_TEXTS] = functools.partial(_numbered, lambda: iter(rows))
  return readers


def _reader(name: str, folder: str, fields: Sequence[str]) -> _Reader:
  """Returns the reader of a file, by its suffix or else its first line."""
  kind = decompressed(name).suffix.lower()
  first = b""
  if kind not in (*_LINES, *_TABLES):
    first = next(lines_of(name), b"").lstrip(codecs.BOM_UTF8)
  is_json = first.lstrip().startswith((b"{", b"["))
  if kind in texts.ENDINGS and not is_json:
    return functools.partial(texts.read, name, folder)
  if kind == ".json" and tables.has_contexts(name):
    return functools.partial(tables.read_contexts, name)
  if kind not in (*_LINES, *_TABLES):
    if first.startswith(b"PAR1"):
      kind = ".parquet"
    elif b"\t" in first and not is_json:
      kind = ".tsv"
  if kind == ".tsv":
    return functools.partial(tables.read_tsv, name)
  if kind in _TABLES:
    return functools.partial(tables.read_records, name, fields)
  return functools.partial(_numbered, functools.partial(lines_of, name))


def _numbered(rows: Callable[[], Iterator[Row]]) -> Iterator[tuple[int, Row]]:
  return enumerate(rows(), start=1)


def _matches(pattern: str, skipped: Counter[str]) -> dict[str, str]:
  """Returns the files of a pattern, and the folder that each is in."""
  path = epath.Path(pattern)
  paths: Iterable[epath.Path] = [path]
  if not is_remote(pattern):
    # A file's name may look like a pattern.
    if not path.exists():
      paths = map(epath.Path, glob.glob(pattern, recursive=True))
  elif glob.has_magic(path.name):
    paths = path.parent.glob(path.name)
  matched = [str(file) for file in paths if file.is_file()]
  if not matched and path.is_dir():
    return dict.fromkeys(_files_in(pattern, skipped), pattern)
  if not matched:
    raise InputError(
      f"no file matches --input={pattern}; give files of JSON Lines, TSV or "
      "parquet, a folder of texts, tfds:NAME/CONFIG or seqio:MODULE:TASK"
    )
  parts = PurePath(pattern).parts[:-1]
  plain = itertools.takewhile(lambda part: not glob.has_magic(part), parts)
  return dict.fromkeys(matched, str(PurePath(*plain)))


def _files_in(folder: str, skipped: Counter[str]) -> list[str]:
  """Returns the files in a folder of texts, or one saved by `datasets`."""
  path = epath.Path(folder)
  names = [n for n in sorted(sizes_below(folder)) if "/." not in f"/{n}"]
  if "dataset_dict.json" in names:
    raise InputError(
      f"--input={folder} has several splits; give one: --input={path}/train"
    )
  if "dataset_info.json" in names and "state.json" in names:
    state = json.loads((path / "state.json").read_text())
    return [str(path / file["filename"]) for file in state["_data_files"]]
  kinds = {name: decompressed(name).suffix.lower() for name in names}
  text_files = [name for name in names if kinds[name] in texts.ENDINGS]
  others = [name for name in names if kinds[name] in (".jsonl", *_TABLES)]
  if others or not text_files:
    what = f"not only texts, but {others[0]}" if others else "no texts"
    raise InputError(
      f"--input={folder} is a folder, and has {what} ({' '.join(texts.ENDINGS)}"
      f"); give the files in it: --input='{path}/*.jsonl'"
    )
  skipped["files that are no texts"] += len(names) - len(text_files)
  return [str(path / name) for name in text_files]
