"""Recall against the exact nearest neighbors."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from realm_jax.indexes.exact import ExactConfig, ExactIndex
from realm_jax.indexes.protocol import (
  Index,
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


class GroundTruth:
  """What exact search finds for a sample of queries: the k best blocks.

  The vectors of all blocks, an array or rows that can be gathered, are searched
  in parts.
  """

  def __init__(self, vectors: Rows, queries: QueryBatch, k: int):
    self.queries, self.k = queries, k
    # Rows that are no array gather them in any order by a method.
    self._gather: Any = getattr(vectors, "gather", vectors.__getitem__)
    self._query_vectors = check_vectors(queries, vectors.shape[1])
    best = np.zeros((len(self._query_vectors), 0), np.float32)
    num_blocks, _ = vectors.shape
    size = min(_ROWS_PER_PART, num_blocks)
    for start in range(0, num_blocks, size):
      rows = vectors[start : start + size]
      part = ExactIndex(rows, ExactConfig(capacity=size))
      found = part.search(queries, min(k, part.num_blocks))
      best = np.concatenate([best, found.scores], axis=1)
      best = -np.sort(-best, axis=1)[:, :k]
    self._best = best

  def recall(self, found: SearchResult) -> float:
    """Returns the share of blocks that score no worse than the k-th best.

    That k is the number of blocks found, at most the one of the constructor.
    """
    vectors = self._gather(found.rows).astype(np.float32)
    scores = np.einsum("bd,bkd->bk", self._query_vectors, vectors)
    k = found.rows.shape[1]
    worst = self._best[:, k - 1 : k]
    return float(np.mean(scores >= worst - _TIE * abs(worst)))


def measure_recall(
  index: Index, vectors: Rows, queries: QueryBatch, ks: Sequence[int]
) -> dict[str, float]:
  """Measures recall@k against exact search; returns it by k, as text.

  A block counts as found if it scores no lower than exact search's k-th. Values
  of k above the number of blocks are skipped.
  """
  ks = [k for k in ks if k <= index.num_blocks]
  if not ks:
    return {}
  truth = GroundTruth(vectors, queries, max(ks))
  return {str(k): truth.recall(index.search(queries, k)) for k in ks}
