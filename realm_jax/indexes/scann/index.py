"""A ScaNN searcher behind the `Index` protocol."""

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Integer

from realm_jax.indexes.protocol import (
  Blocks,
  IndexLoadError,
  QueryBatch,
  SearchResult,
  check_k,
  check_vectors,
  in_order,
)
from realm_jax.indexes.scann import files
from realm_jax.indexes.scann.files import Tree
from realm_jax.storage.json_files import JsonValue

_Found = tuple[Integer[np.ndarray, "b k"], Float32[np.ndarray, "b k"]]


class ScannIndex:
  """A ScaNN searcher over files; `ScannConfig` builds and loads it.

  Without a tree, every block is scored; `threads` of None uses every core.

  Raises:
    IndexLoadError: ScaNN cannot read the files, or they are of other blocks.
  """

  kind = "scann"
  needs_vectors = True

  def __init__(
    self,
    directory: Path,
    blocks: Blocks,
    *,
    tree: Tree | None,
    threads: int | None = None,
  ):
    self.num_blocks, self.dim = blocks.embedded().shape
    self._loaded = files.load_searcher(directory)
    if self._loaded.size() != self.num_blocks:
      raise IndexLoadError(
        f"the ScaNN index holds {self._loaded.size()} blocks and the "
        f"generation {self.num_blocks}; build it again"
      )
    self.report: dict[str, JsonValue] = {}
    self.tree = tree
    self._threads = threads or os.cpu_count() or 1

  @functools.cached_property
  def _searcher(self) -> Any:
    """The searcher, with threads that search at the caller's priority.

    Its first threads have the priority of the thread that loaded it, which may
    be low. These get the priority of the thread that searches first, which
    itself does a share of the work.
    """
    if self._threads > 1:
      self._loaded.set_num_threads(self._threads - 1)
    return self._loaded

  def search(self, queries: QueryBatch, k: int) -> SearchResult:
    """Returns k blocks for each query, approximately the best."""
    check_k(k, self.num_blocks)
    if self.tree is None:
      vectors = check_vectors(queries, self.dim)
      return in_order(*self._search_batched(vectors, k))
    return self.search_at(
      queries, k, self.tree.leaves_searched, self.tree.num_reordered
    )

  def search_at(
    self, queries: QueryBatch, k: int, leaves_searched: int, num_reordered: int
  ) -> SearchResult:
    """Searches `leaves_searched` leaves and reorders `num_reordered` blocks."""
    assert self.tree is not None
    vectors = check_vectors(queries, self.dim)
    leaves = self.tree.structure.num_leaves
    # Twice as many leaves as hold k blocks on average: they may be uneven.
    searched = max(leaves_searched, -(-2 * k * leaves // self.num_blocks))
    rows, scores = self._search_batched(
      vectors,
      k,
      leaves_to_search=min(searched, leaves),
      pre_reorder_num_neighbors=min(max(num_reordered, k), self.num_blocks),
    )
    # Where the leaves hold fewer than k blocks, ScaNN returns NaN.
    short = np.isnan(scores).any(axis=1)
    if short.any():
      rows, scores = rows.copy(), scores.copy()
      rows[short], scores[short] = self._search_batched(
        vectors[short],
        k,
        leaves_to_search=leaves,
        pre_reorder_num_neighbors=self.num_blocks,
      )
    return in_order(rows, scores)

  def _search_batched(
    self, vectors: Float32[np.ndarray, "b d"], k: int, **settings: int
  ) -> _Found:
    if self._threads == 1:
      # ScaNN's parallel search crashes without a second thread.
      return self._loaded.search_batched(vectors, k, **settings)
    # Half of a small batch goes to each of two cores, not all of it to one.
    size = max(1, min(256, len(vectors) // 2))
    return self._searcher.search_batched_parallel(
      vectors, k, batch_size=size, **settings
    )
