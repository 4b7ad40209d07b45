"""Scores of the exact nearest neighbors, the ground truth of recall."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from jaxtyping import Float32

from realm_jax.indexes.exact import ExactConfig, ExactIndex
from realm_jax.indexes.protocol import QueryBatch, Rows, in_order

# Rows in memory at once, beside the index whose recall is measured.
_ROWS_PER_PART = 1 << 18


def best_scores(
  vectors: Rows, queries: QueryBatch, k: int
) -> Float32[np.ndarray, "b k"]:
  """Returns the k largest scores of each query, reading the corpus in parts."""
  scores = np.zeros((len(queries.token_ids), 0), np.float32)
  for part in _parts(vectors):
    found = part.search(queries, min(k, part.num_blocks))
    scores = np.concatenate([scores, found.scores], axis=1)
    scores = in_order(np.zeros(scores.shape, np.int32), scores).scores[:, :k]
  return scores


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
