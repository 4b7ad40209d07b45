"""What a source of documents is: files of rows, in order."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from realm_jax.corpus.building.sources.documents import Document, Removal

# A line of a file, or the fields of a record.
Row: TypeAlias = bytes | dict[str, object]

# Rows of one chunk, which a worker gets at once. A call of the tokenizer costs
# 20 ms, and what a chunk gives stays in memory until it is written.
ROWS_PER_CHUNK = 2048
BYTES_PER_CHUNK = 4 << 20


@runtime_checkable
class InputFile(Protocol):
  """One file of rows; its order and numbers never change."""

  @property
  def name(self) -> str:
    """Name for messages."""
    ...

  @property
  def size(self) -> int:
    """Bytes of the file; 0 if they are not known."""
    ...

  @property
  def numbers_repeats(self) -> bool:
    """Whether rows with the same contents are documents of their own.

    They get a number then. If not, an id that occurs again is an error.
    """
    ...

  def rows(self) -> Iterator[tuple[Row, int]]:
    """Yields rows, and how many bytes of the file were read."""
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


class Chunk(NamedTuple):
  """Consecutive rows of a file.

  Attributes:
    file: Number of the file.
    index: Number of the chunk in the file, from 0.
    first: Number of the first row in the file, from 1.
    rows: The rows.
    bytes_read: Bytes of the file that were read up to here.
  """

  file: int
  index: int
  first: int
  rows: list[Row]
  bytes_read: int


def read_chunks(number: int, file: InputFile) -> Iterator[Chunk]:
  """Yields the rows of a file, the `number`-th, in chunks."""
  rows: list[Row] = []
  index, first, size, bytes_read = 0, 1, 0, 0
  for row, bytes_read in file.rows():
    rows.append(row)
    size += row_size(row)
    if len(rows) >= ROWS_PER_CHUNK or size >= BYTES_PER_CHUNK:
      yield Chunk(number, index, first, rows, bytes_read)
      index, first = index + 1, first + len(rows)
      rows, size = [], 0
  if rows:
    yield Chunk(number, index, first, rows, bytes_read)


def row_size(row: Row) -> int:
  """Returns about how many bytes of text a row has."""
  if isinstance(row, bytes):
    return len(row)
  return sum(len(v) for v in row.values() if isinstance(v, (bytes, str)))
