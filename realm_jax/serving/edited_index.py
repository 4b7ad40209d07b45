"""Search of an index some of whose blocks have changed since it was built."""

from collections.abc import Mapping, Set

import numpy as np
from jaxtyping import Float32, Int64

from realm_jax.indexes.protocol import (
  Index,
  QueryBatch,
  SearchResult,
  check_k,
  check_vectors,
  in_order,
)
from realm_jax.serving.errors import EditError
from realm_jax.storage.json_files import JsonValue

# An exact search compiles a program for each k, so that a few blocks more are
# asked for than are hidden.
_HIDDEN_MULTIPLE = 8


class EditedIndex:
  """Searches an index, in which some blocks have other vectors or are hidden.

  It searches for as many blocks more as have changed, drops these, scores their
  new vectors exactly, and merges. So the result is that of an index which was
  built over the new vectors, as far as the index itself is exact.

  Args:
    index: Index over the blocks as they were.
    vectors: New vector of each edited row.
    hidden: Rows that no search finds.

  Raises:
    EditError: A block is edited whose index has no vectors (BM25).
  """

  def __init__(
    self,
    index: Index,
    vectors: Mapping[int, Float32[np.ndarray, " d"]],
    hidden: Set[int] = frozenset(),
  ):
    if vectors and not index.needs_vectors:
      raise EditError(
        f"the index is {index.kind!r}, which counts words over the whole "
        "corpus; only blocks of an index of vectors can be edited here"
      )
    self.kind = index.kind
    self.num_blocks = index.num_blocks - len(hidden)
    self.needs_vectors = index.needs_vectors
    self.report: dict[str, JsonValue] = {}
    self._index = index
    self._dropped = sorted(set(vectors) | set(hidden))
    rows = sorted(set(vectors) - set(hidden))
    self._rows: Int64[np.ndarray, " e"] = np.array(rows, np.int64)
    self._vectors = [vectors[row] for row in rows]

  def search(self, queries: QueryBatch, k: int) -> SearchResult:
    """Returns the k best blocks of each query, as `Index.search` does."""
    check_k(k, self.num_blocks)
    more = -(-len(self._dropped) // _HIDDEN_MULTIPLE) * _HIDDEN_MULTIPLE
    number = min(k + more, self._index.num_blocks)
    found = self._index.search(queries, number)
    rows = found.rows
    scores = np.where(np.isin(rows, self._dropped), -np.inf, found.scores)
    if len(self._rows):
      asked = check_vectors(queries, len(self._vectors[0]))
      own = asked @ np.stack(self._vectors).T
      scores = np.concatenate([scores, own], axis=1)
      rows = np.concatenate([rows, np.tile(self._rows, (len(rows), 1))], axis=1)
    merged = in_order(rows, scores.astype(np.float32))
    return SearchResult(merged.rows[:, :k], merged.scores[:, :k])
