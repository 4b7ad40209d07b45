"""Tables: TSV, parquet, and the arrow files of Hugging Face's `datasets`.

They are read in order, some rows at a time. HotpotQA's questions with their
paragraphs are read whole.
"""

import csv
import itertools
import json
from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.parquet
from etils import epath

from realm_jax.corpus import InputError
from realm_jax.corpus.documents import FIELDS, Fields, Row, hash63
from realm_jax.storage.line_files import lines_of

# Number of rows of parquet in memory at once.
_ROWS_AT_ONCE = 256
# Maximum length of a TSV field in characters; `lines_of` cuts longer lines.
_LONGEST_FIELD = 4 << 20


def read_tsv(name: str) -> Iterator[tuple[int, Row]]:
  """Yields the rows of tab-separated values, with their lines.

  A file whose header has `id` and `text` is quoted like CSV, as DPR's passages
  are. Other files have columns id, text and optionally title, as MS MARCO's do.
  """
  csv.field_size_limit(_LONGEST_FIELD)
  # A row that is not UTF-8 is refused later.
  lines = (line.decode("utf-8", "surrogateescape") for line in lines_of(name))
  first = next(lines, "").removeprefix("\ufeff")
  names = first.rstrip().replace('"', "").split("\t")
  fewest, quoting, offset = len(names), csv.QUOTE_MINIMAL, 2
  if not {"id", "text"} <= {*names}:
    lines, names = itertools.chain([first], lines), ["id", "text", "title"]
    fewest, quoting, offset = 2, csv.QUOTE_NONE, 1
  rows = csv.reader(lines, delimiter="\t", quoting=quoting, strict=True)
  while True:
    # A quoted field may span several lines.
    number = rows.line_num + offset
    try:
      if not fewest <= len(values := next(rows)) <= len(names):
        raise csv.Error(f"the number of its fields is {len(values)}")
      yield number, Fields(zip(names, values, strict=False))
    except csv.Error as error:
      wanted = ", ".join(names[:fewest])
      yield number, InputError(f"{error}; wanted {wanted} with tabs between")
    except StopIteration:
      return


def read_records(name: str, fields: Sequence[str]) -> Iterator[tuple[int, Row]]:
  """Yields the rows of parquet, or of an arrow stream, with their numbers.

  Reads only the columns that are used, including the corpus's `fields`. Dates
  become text in ISO 8601.

  Raises:
    InputError: The file is damaged.
  """
  number = 0
  try:
    with epath.Path(name).open("rb") as file:
      is_parquet = file.read(4) == b"PAR1"
      file.seek(0)
      read = pyarrow.parquet.ParquetFile if is_parquet else pa.ipc.open_stream
      table: Any = read(file)
      names = (table.schema_arrow if is_parquet else table.schema).names
      # All columns of a table without texts are read, for the error message.
      if {"text", "contents"} & {*names}:
        names = [key for key in names if key in (*FIELDS, *fields)]
      batches = table
      if is_parquet:
        batches = table.iter_batches(_ROWS_AT_ONCE, columns=names)
      rows = (row for b in batches for row in b.select(names).to_pylist())
      for number, row in enumerate(rows, start=1):
        values = ((key, _as_json(row[key])) for key in names)
        yield number, Fields(pair for pair in values if pair[1] is not None)
  except (pa.ArrowException, OSError) as error:
    raise InputError(
      f"{name} cannot be read after row {number} ({error}); fetch or write it "
      "again"
    ) from error


def has_contexts(name: str) -> bool:
  """Returns whether a file is a list of questions with their paragraphs."""
  with epath.Path(name).open("rb") as file:
    first = file.read(1 << 16).lstrip()
  return first.startswith(b"[") and b'"context"' in first


def read_contexts(name: str) -> Iterator[tuple[int, Row]]:
  """Yields the paragraphs of HotpotQA's questions, with their numbers.

  Those that are in the contexts of several questions come again, with the same
  id. The training set takes 3 GB of memory.
  """
  number = 0
  try:
    examples = json.loads(epath.Path(name).read_bytes())
    for title, sentences in (p for e in examples for p in e["context"]):
      text = " ".join(map(str.strip, sentences))
      key = hash63("\0".join((title, text)))
      number += 1
      yield number, Fields(id=f"{key:x}", title=title, text=text)
  except (ValueError, LookupError, TypeError) as error:
    yield number + 1, InputError(f"the file is not HotpotQA's ({error!r})")


def _as_json(value: Any) -> Any:
  return value.isoformat() if isinstance(value, date) else value
