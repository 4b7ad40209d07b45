"""What exact search finds, by which other indexes are measured."""

import numpy as np
from jaxtyping import Float32

from realm_jax.indexes.exact import ExactIndex
from realm_jax.indexes.protocol import QueryBatch, Rows, in_order

# Held at a time, beside the index that is measured.
_ROWS_AT_ONCE = 1 << 18


def best_scores(
  vectors: Rows, queries: QueryBatch, k: int
) -> Float32[np.ndarray, "b k"]:
  """The k largest scores of each query, from a part of the corpus at a time."""
  num_blocks, _ = vectors.shape
  scores = np.zeros((len(queries.token_ids), 0), np.float32)
  size = min(_ROWS_AT_ONCE, num_blocks)
  for start in range(0, num_blocks, size):
    part = ExactIndex(vectors[start : start + size], capacity=size)
    found = part.search(queries, min(k, part.num_blocks))
    scores = np.concatenate([scores, found.scores], axis=1)
    scores = in_order(np.zeros(scores.shape, np.int32), scores).scores[:, :k]
  return scores
