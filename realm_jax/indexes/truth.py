"""What exact search finds, by which other indexes are measured."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from jaxtyping import Float32

from realm_jax.indexes.exact import ExactIndex
from realm_jax.indexes.protocol import QueryBatch, Rows, in_order

# Of a part, beside the index that is measured.
_ROWS_AT_ONCE = 1 << 18


def best_scores(
  vectors: Rows, queries: QueryBatch, k: int
) -> Float32[np.ndarray, "b k"]:
  """The k largest scores of each query, from a part of the corpus at a time."""
  scores = np.zeros((len(queries.token_ids), 0), np.float32)
  for part in _parts(vectors):
    found = part.search(queries, min(k, part.num_blocks))
    scores = np.concatenate([scores, found.scores], axis=1)
    scores = in_order(np.zeros(scores.shape, np.int32), scores).scores[:, :k]
  return scores


def _parts(vectors: Rows) -> Iterator[ExactIndex]:
  """All rows, a part at a time; the next is read while one is searched."""
  num_blocks, _ = vectors.shape
  size = min(_ROWS_AT_ONCE, num_blocks)

  def read(start: int) -> ExactIndex:
    return ExactIndex(vectors[start : start + size], capacity=size)

  with ThreadPoolExecutor(1) as reader:
    coming = reader.submit(read, 0)
    for start in range(size, num_blocks, size):
      part, coming = coming.result(), reader.submit(read, start)
      yield part
    yield coming.result()
