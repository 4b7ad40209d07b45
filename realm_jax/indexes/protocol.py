"""Protocols of indexes, and the types of their arguments and results."""

import abc
import dataclasses
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Float32, Int, Int32, Integer

from realm_jax.errors import ExitCode, RealmError
from realm_jax.settings import require_valid
from realm_jax.storage.json_files import JsonValue

_ROWS_PER_RUN = 16

# Module and class by kind. They are imported on first use, because some need a
# library. A module that --modules imports may add others.
CONFIGS = {
  "exact": ("realm_jax.indexes.exact", "ExactConfig"),
  "scann": ("realm_jax.indexes.scann", "ScannConfig"),
  "faiss": ("realm_jax.indexes.faiss", "FaissConfig"),
  "symphonyqg": ("realm_jax.indexes.symphonyqg", "SymphonyQgConfig"),
  "bm25": ("realm_jax.indexes.bm25", "Bm25Config"),
  "hybrid": ("realm_jax.indexes.hybrid", "HybridConfig"),
  "random": ("realm_jax.indexes.random", "RandomConfig"),
}


class SearchError(RealmError):
  """The index cannot answer a search."""


class IndexLoadError(RealmError):
  """A saved index is damaged, or of an unknown kind."""


class RetrievalUnavailableError(RealmError):
  """There is nothing to search, so a training run saves and ends."""


class WaitPreemptedError(RetrievalUnavailableError):
  """The run was preempted while it waited for a snapshot or a service."""


class IndexCrashedError(RealmError):
  """The process that searches an index ended, or does not answer.

  The run ends, and continues from its last checkpoint when it is restarted.
  """

  exit_code = ExitCode.LOST_PROCESS


class RecallError(RealmError):
  """The recall of an index is below its target."""


@dataclasses.dataclass(frozen=True)
class QueryBatch:
  """Queries in both forms: as wordpieces with [CLS] and [SEP], and as vectors.

  An index with `needs_vectors` reads the vectors, and others the wordpieces.
  """

  token_ids: Int32[np.ndarray, "b q"]
  vectors: Float32[np.ndarray, "b d"] | None = None

  @classmethod
  def of_vectors(cls, vectors: Float32[np.ndarray, "b d"]) -> "QueryBatch":
    """Returns queries that have vectors but no wordpieces.

    Example:
      >>> QueryBatch.of_vectors(np.zeros((2, 8), np.float32)).token_ids.shape
      (2, 1)
    """
    return cls(np.zeros((len(vectors), 1), np.int32), vectors)


@dataclasses.dataclass(frozen=True)
class SearchResult:
  """The best blocks of each query, best first; ties go to the lower row.

  Attributes:
    rows: Rows of the blocks.
    scores: Scores of the blocks, which determine their order.
    retriever_scores: Scores of the retriever, if `scores` are another model's.
    paths: Rows of each path, padded with `NULL_ROW`, if paths of blocks were
      searched; then `rows` has the first block of each path.
  """

  rows: Int32[np.ndarray, "b k"]
  scores: Float32[np.ndarray, "b k"]
  retriever_scores: Float32[np.ndarray, "b k"] | None = None
  paths: Int32[np.ndarray, "b k h"] | None = None


@runtime_checkable
class Rows(Protocol):
  """Vectors in row order, read in slices; a memmap, for example."""

  @property
  def shape(self) -> tuple[int, ...]: ...

  @property
  def dtype(self) -> np.dtype: ...

  def __getitem__(self, rows: slice, /) -> np.ndarray: ...


@dataclasses.dataclass(frozen=True)
class Blocks:
  """The blocks that an index is built over, and other inputs of a build.

  Attributes:
    num_blocks: Number of blocks, N.
    vectors: Embeddings, [N, d]; None if nothing has been embedded.
    token_ids: Function from a row to the wordpieces of title and body, without
      special tokens.
    vocab_size: Size of the vocabulary of the wordpieces.
    queries: Sample of real queries, with vectors, to measure recall on.
    mesh: Mesh of the devices, for an index that lives on them.
    check: Function called regularly; an exception it raises ends the build.
  """

  num_blocks: int
  vectors: Rows | None = None
  token_ids: Callable[[int], Int[np.ndarray, " l"]] | None = None
  vocab_size: int = 0
  queries: QueryBatch | None = None
  mesh: jax.sharding.Mesh | None = None
  check: Callable[[], None] = lambda: None

  def embedded(self) -> Rows:
    """Returns the vectors; raises RealmError if nothing has been embedded."""
    if self.vectors is None:
      raise RealmError("this index needs the blocks' vectors; embed them first")
    return self.vectors


@runtime_checkable
class Index(Protocol):
  """Finds the blocks that score best for a query.

  Attributes:
    kind: Name of the kind of index, as a manifest stores it.
    num_blocks: Number of blocks in the index.
    needs_vectors: Whether `search` reads the vectors of the queries.
    has_own_scores: Whether the index ranks blocks by other scores than inner
      products of vectors. Evaluations then keep its order and scores; training
      scores the blocks by their vectors in any case.
    report: Choices and measurements of the build, for the manifest; empty for
      an index that was loaded.

  Example:
    >>> vectors = np.eye(3, dtype=np.float32)
    >>> index = as_config("exact").build(Blocks(3, vectors))
    >>> queries = QueryBatch.of_vectors(np.array([[0, 2, 1]], np.float32))
    >>> index.search(queries, k=2)
    SearchResult(rows=array([[1, 2]], dtype=int32), scores=array([[2., 1.]], ...
  """

  kind: str
  num_blocks: int
  needs_vectors: bool
  has_own_scores: bool = False
  report: Mapping[str, JsonValue] = MappingProxyType({})

  def search(self, queries: QueryBatch, k: int) -> SearchResult:
    """Returns the k best blocks of each query.

    Raises:
      SearchError: k is not in 1 … num_blocks, or the index needs vectors that
        are missing or have another dimension.
    """
    ...


class IndexConfig(abc.ABC):
  """The settings of one kind of index: a frozen dataclass of plain values.

  Attributes:
    kind: Name of the kind of index, as a manifest stores it.
    needs_vectors: Whether the index needs the blocks' vectors, so that they are
      embedded.
    has_files: Whether `build` writes files for `load`. If not, the index
      builder skips building.
  """

  kind: ClassVar[str]
  needs_vectors: ClassVar[bool] = True
  has_files: ClassVar[bool] = True

  def __post_init__(self) -> None:
    require_valid(self)

  @property
  def needs_separate_process(self) -> bool:
    """Whether loading stops all threads of its process.

    A trainer then loads and searches the index in an `IsolatedIndex`.
    """
    return False

  @abc.abstractmethod
  def build(self, blocks: Blocks, directory: Path | None = None) -> Index:
    """Builds the index, and writes its files for `load` to a new directory.

    Without a directory, the index is only in memory.

    Raises:
      RealmError: The blocks lack what the index needs, or the library is
        missing or refuses to build it.
      RecallError: The recall is below the target of the settings.
      OSError: The disk is full.
    """

  def load(self, directory: Path, blocks: Blocks) -> Index:
    """Loads the files of `build` for the same blocks, or builds it again.

    Raises:
      IndexLoadError: The files cannot be read.
      RealmError: The library is missing.
    """
    del directory
    return self.build(blocks)


def library_of(kind: str, module: str, advice: str) -> Any:
  """Imports the library of a kind of index, or raises a `RealmError`."""
  try:
    return importlib.import_module(module)
  except ImportError as error:
    raise RealmError(
      f"the index `{kind}` needs the library {module.partition('.')[0]}, which "
      f"cannot be imported here ({error}); {advice}"
    ) from error


def config_from(kind: str, parameters: Mapping[str, JsonValue]) -> IndexConfig:
  """Returns the settings that a manifest stores.

  Settings that the class does not have are ignored, because another version of
  the class may have written the manifest.

  Raises:
    IndexLoadError: The kind is unknown, or a setting has a wrong type.
  """
  if kind not in CONFIGS:
    raise IndexLoadError(
      f"no index is called {kind!r}; want one of {', '.join(CONFIGS)}, or name "
      "the module that adds it to these by --modules"
    )
  module, name = CONFIGS[kind]
  config = getattr(importlib.import_module(module), name)
  names = {field.name for field in dataclasses.fields(config)}
  settings = {name: parameters[name] for name in names & parameters.keys()}
  try:
    return config(**settings)
  except (RealmError, TypeError) as error:
    raise IndexLoadError(f"the index {kind!r} cannot be: {error}") from error


def as_config(index: IndexConfig | str) -> IndexConfig:
  """Returns the settings of an index, or the defaults of a kind by its name.

  Raises:
    IndexLoadError: The kind is unknown.

  Example:
    >>> as_config("bm25")
    Bm25Config(k1=0.9, b=0.4)
  """
  return config_from(index, {}) if isinstance(index, str) else index


def check_k(k: int, num_blocks: int) -> None:
  """Raises a `SearchError` unless k is in 1 … num_blocks."""
  if k > num_blocks:
    raise SearchError(
      f"k={k} exceeds the corpus's {num_blocks} blocks; search for fewer, in a "
      "run by NUM_CANDIDATES or NUM_SEARCHED"
    )
  if k < 1:
    raise SearchError(f"k={k}; want at least 1")


def check_vectors(queries: QueryBatch, dim: int) -> Float32[np.ndarray, "b d"]:
  """Returns the queries' vectors, contiguous in float32.

  Raises:
    SearchError: The queries have no vectors, or of another dimension.
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


def sample_vectors(
  vectors: Rows, count: int, *, seed: int = 0
) -> Float32[np.ndarray, "n d"]:
  """Returns about `count` random vectors in random order, at most all.

  Reads runs of consecutive rows, which is faster.
  """
  rng = np.random.default_rng(seed)
  num_blocks, size = vectors.shape[0], _ROWS_PER_RUN
  if num_blocks <= count:
    sample = np.asarray(vectors[0:num_blocks], np.float32)
  else:
    num_runs = num_blocks // size
    runs = rng.choice(num_runs, min(-(-count // size), num_runs), False)
    parts = [vectors[run * size : (run + 1) * size] for run in np.sort(runs)]
    sample = np.concatenate(parts).astype(np.float32)
  return sample[rng.permutation(len(sample))]


def in_order(
  rows: Integer[np.ndarray, "b k"], scores: Float32[np.ndarray, "b k"]
) -> SearchResult:
  """Sorts each query's blocks by falling score, ties by rising row.

  Example:
    >>> rows = np.array([[4, 7, 2]])
    >>> in_order(rows, np.array([[0.5, 2.0, 0.5]], np.float32)).rows
    array([[7, 2, 4]], dtype=int32)
  """
  order = np.lexsort((rows, -scores), axis=-1)
  return SearchResult(
    rows=np.take_along_axis(rows, order, axis=1).astype(np.int32),
    scores=np.take_along_axis(scores, order, axis=1).astype(np.float32),
  )


class Tree(NamedTuple):
  """The leaves into which an index divides its blocks, and the search effort.

  A query searches `leaves_searched` leaves; the `num_reordered` best blocks by
  code are scored again.
  """

  num_leaves: int
  leaves_searched: int
  num_reordered: int


class TreeIndex(Index):
  """An approximate index of a library; without a tree, it searches all."""

  needs_vectors = True
  dim: int
  tree: Tree | None

  def search(self, queries: QueryBatch, k: int) -> SearchResult:
    """Returns k blocks for each query, approximately the best."""
    check_k(k, self.num_blocks)
    vectors = check_vectors(queries, self.dim)
    leaves, searched, reordered = self.tree or Tree(1, 1, k)
    # Leaves are uneven, so twice the number that holds k blocks on average.
    searched = max(searched, -(-2 * k * leaves // self.num_blocks))
    reordered = min(max(reordered, k), self.num_blocks)
    used = Tree(leaves, min(searched, leaves), reordered)
    rows, scores = self._search(vectors, k, used)
    short = ((rows < 0) | np.isnan(scores)).any(axis=1)
    if short.any():
      # ScaNN's arrays are read-only.
      rows, scores = rows.copy(), scores.copy()
      used = Tree(leaves, leaves, self.num_blocks)
      rows[short], scores[short] = self._search(vectors[short], k, used)
    return in_order(rows, scores)

  @abc.abstractmethod
  def _search(
    self, vectors: Float32[np.ndarray, "b d"], k: int, used: Tree
  ) -> tuple[Integer[np.ndarray, "b k"], Float32[np.ndarray, "b k"]]:
    """Returns rows and scores, with −1 or NaN if the leaves have too few."""
