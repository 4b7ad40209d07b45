"""Recall against the exact nearest neighbors."""

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32, Int

from realm_jax.indexes.exact import ExactConfig, ExactIndex
from realm_jax.indexes.protocol import (
  QueryBatch,
  Rows,
  SearchResult,
  check_vectors,
)

# Rows in memory at once, beside the index whose recall is measured.
_ROWS_PER_PART = 1 << 18
# Scores that differ by less than this, relative to the score, are equal: among
# blocks with the same text, any is a correct result.
_TIE = 1e-5


@runtime_checkable
class _GatherableRows(Rows, Protocol):
  """Rows that are no array and can still be read in any order."""

  def gather(
    self, rows: Int[np.ndarray, "*b"]
  ) -> Float32[np.ndarray, "*b d"]: ...


@dataclasses.dataclass(frozen=True)
class GroundTruth:
  """What exact search finds for a sample of queries.

  Attributes:
    queries: Queries with vectors.
    vectors: Embeddings of all blocks: an array, or rows that can be gathered.
    best: The largest scores of each query, in falling order.
  """

  queries: QueryBatch
  vectors: np.ndarray | _GatherableRows
  best: Float32[np.ndarray, "b k"]

  @property
  def k(self) -> int:
    """The number of best blocks that are known."""
    return self.best.shape[1]

  def recall(self, found: SearchResult) -> float:
    """Returns the share of blocks that score no worse than the k-th best."""
    assert self.queries.vectors is not None
    if isinstance(self.vectors, np.ndarray):
      vectors = self.vectors[found.rows].astype(np.float32)
    else:
      vectors = self.vectors.gather(found.rows)
    scores = np.einsum("bd,bkd->bk", self.queries.vectors, vectors)
    k = found.rows.shape[1]
    worst = self.best[:, k - 1 : k]
    return float(np.mean(scores >= worst - _TIE * abs(worst)))


def ground_truth(vectors: Rows, queries: QueryBatch, k: int) -> GroundTruth:
  """Searches for the k best blocks exactly, reading the corpus in parts."""
  assert isinstance(vectors, np.ndarray | _GatherableRows)
  checked = check_vectors(queries, vectors.shape[1])
  best = np.zeros((len(checked), 0), np.float32)
  for part in _parts(vectors):
    found = part.search(queries, min(k, part.num_blocks))
    best = np.concatenate([best, found.scores], axis=1)
    best = -np.sort(-best, axis=1)[:, :k]
  return GroundTruth(QueryBatch(queries.token_ids, checked), vectors, best)


def _parts(vectors: Rows) -> Iterator[ExactIndex]:
  """Yields all rows in parts; reads the next while one is searched."""
  num_blocks, _ = vectors.shape
  size = min(_ROWS_PER_PART, num_blocks)

  def read(start: int) -> ExactIndex:
    return ExactIndex(vectors[start : start + size], ExactConfig(capacity=size))

  with ThreadPoolExecutor(1) as reader:
    coming = reader.submit(read, 0)
    for start in range(size, num_blocks, size):
      part, coming = coming.result(), reader.submit(read, start)
      yield part
    yield coming.result()
