"""What every index offers, whatever searches behind it."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast, runtime_checkable

import numpy as np
from jaxtyping import Float32, Int, Int32

PathLike = Any  # str, pathlib.Path or etils.epath.Path.


class SearchError(ValueError):
  """A search that the index cannot answer."""


class IndexLoadError(ValueError):
  """A saved index that cannot be read, or is of other blocks."""


class IndexCrashedError(ValueError):
  """An index whose process is gone, or does not answer."""


class RecallError(ValueError):
  """An index that finds less than it should."""


class MissingLibraryError(ValueError):
  """The library behind an index is not installed."""


@dataclasses.dataclass(frozen=True)
class QueryBatch:
  """Queries in both forms; an index reads the one it needs.

  Attributes:
    token_ids: wordpieces with [CLS] and [SEP], padded.
    vectors: the queries' vectors, for an index with `needs_vectors`.
  """

  token_ids: Int32[np.ndarray, "b q"]
  vectors: Float32[np.ndarray, "b d"] | None = None


@dataclasses.dataclass(frozen=True)
class SearchResult:
  """The best blocks of each query, best first; of equals, the lower row."""

  rows: Int32[np.ndarray, "b k"]
  scores: Float32[np.ndarray, "b k"]


@runtime_checkable
class Rows(Protocol):
  """Vectors in row order that are read a slice at a time, as a memmap is.

  What is no array has `gather(rows)` besides.
  """

  @property
  def shape(self) -> tuple[int, ...]: ...

  @property
  def dtype(self) -> np.dtype: ...

  def __getitem__(self, rows: slice, /) -> np.ndarray: ...


def gather(
  vectors: Rows, rows: Int[np.ndarray, "*b"]
) -> Float32[np.ndarray, "*b d"]:
  """The vectors of any rows."""
  if isinstance(vectors, np.ndarray):
    return vectors[rows].astype(np.float32)
  return cast(Any, vectors).gather(rows)


@dataclasses.dataclass(frozen=True)
class Blocks:
  """What an index is built over.

  Attributes:
    num_blocks: N.
    vectors: [N, d]; None where nothing has been embedded.
    token_ids: a row's wordpieces, title and body, without special ones.
    vocab_size: of those wordpieces.
  """

  num_blocks: int
  vectors: Rows | None = None
  token_ids: Callable[[int], Int[np.ndarray, " l"]] | None = None
  vocab_size: int = 0


@dataclasses.dataclass(frozen=True)
class BuildOptions:
  """What the builder of an index may need besides blocks.

  Attributes:
    directory: where the index writes what `IndexConfig.load` reads; None where
      it is not kept.
    mesh: for an index that lives on devices.
    queries: a sample of real ones, with vectors, to measure on.
    previous: what an earlier index of the same kind wrote, of which the
      settings may have been others.
    check: called now and then; what it raises ends the work.
  """

  directory: Path | None = None
  mesh: Any = None
  queries: QueryBatch | None = None
  previous: Path | None = None
  check: Callable[[], None] = lambda: None


# Metadata of a setting that concerns the host at work and not the index: no
# manifest holds it, and another value makes no other index.
OF_HOST = {"of_host": True}

# Where nothing but blocks is needed.
PLAIN = BuildOptions()


@runtime_checkable
class Index(Protocol):
  """Finds the blocks that score best for a query.

  Attributes:
    kind: the name that a manifest gives it.
    num_blocks: how many blocks it searches.
    needs_vectors: whether `search` reads the queries' vectors.
    report: what its building chose and measured, for the manifest; empty for
      one that was loaded.
  """

  kind: str
  num_blocks: int
  needs_vectors: bool
  report: dict[str, Any]

  def search(self, queries: QueryBatch, k: int) -> SearchResult:
    """The k best blocks of each query.

    Raises:
      SearchError: k is not in 1 … num_blocks, or vectors are needed and
        absent or of another dimension.
    """
    ...


@runtime_checkable
class IndexConfig(Protocol):
  """The settings of one kind of index: a frozen dataclass of plain values.

  Attributes:
    kind: the name that a manifest gives it.
    may_crash: whether its library could take the process along, so that a
      trainer searches it in another: `IsolatedIndex`.
  """

  kind: ClassVar[str]
  may_crash: ClassVar[bool]

  def build(self, blocks: Blocks, options: BuildOptions = PLAIN) -> Index:
    """Builds the index, and writes it where the options say.

    Raises:
      RecallError: it finds less than its settings want.
      OSError: the disk is full.
    """
    ...

  def load(
    self, directory: PathLike, blocks: Blocks, *, mesh: Any = None
  ) -> Index:
    """Reads what `build` wrote for the same blocks."""
    ...


def check_k(k: int, num_blocks: int) -> None:
  """Refuses a k that no search can answer.

  Raises:
    SearchError: k is not in 1 … num_blocks.
  """
  if k > num_blocks:
    raise SearchError(
      f"k={k} exceeds the corpus's {num_blocks} blocks; lower NUM_CANDIDATES"
    )
  if k < 1:
    raise SearchError(f"k={k}; want at least 1")


def check_vectors(queries: QueryBatch, dim: int) -> Float32[np.ndarray, "b d"]:
  """The queries' vectors.

  Raises:
    SearchError: there are none, or they are of another dimension.
  """
  if queries.vectors is None:
    raise SearchError(
      "this index searches vectors and the queries have none; embed them first"
    )
  if queries.vectors.ndim != 2 or queries.vectors.shape[1] != dim:
    raise SearchError(
      f"queries of shape {queries.vectors.shape} for an index of dimension "
      f"{dim}; want [queries, {dim}]: is the model the one that made the index?"
    )
  return np.ascontiguousarray(queries.vectors, np.float32)


def in_order(
  rows: Int[np.ndarray, "b k"], scores: Float32[np.ndarray, "b k"]
) -> SearchResult:
  """Sorts each query's blocks by falling score, equals by rising row."""
  order = np.lexsort((rows, -scores), axis=-1)
  return SearchResult(
    rows=np.take_along_axis(rows, order, axis=1).astype(np.int32),
    scores=np.take_along_axis(scores, order, axis=1).astype(np.float32),
  )
