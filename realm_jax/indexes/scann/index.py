"""A ScaNN searcher behind the `Index` protocol."""

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Integer

from realm_jax.files.json_value import JsonValue
from realm_jax.indexes.protocol import (
  Blocks,
  IndexLoadError,
  PathLike,
  QueryBatch,
  Rows,
  SearchResult,
  check_k,
  check_vectors,
  in_order,
)
from realm_jax.indexes.scann import files
from realm_jax.indexes.scann.files import Tree

_Found = tuple[Integer[np.ndarray, "b k"], Float32[np.ndarray, "b k"]]


class ScannIndex:
  """A ScaNN searcher; `load` and `ScannConfig` return it.

  Args:
    searcher: Searcher over the blocks' vectors.
    blocks: Blocks that it should hold.
    tree: Tree and how much of it is searched; None for brute force.
    threads: Threads for searching; None uses every core.

  Attributes:
    report: Settings and figures of the build, empty if the index was loaded.
  """

  kind = "scann"
  needs_vectors = True

  def __init__(
    self,
    searcher: Any,
    blocks: Blocks,
    *,
    tree: Tree | None,
    threads: int | None = None,
  ):
    self.num_blocks, self.dim = vectors_of(blocks).shape
    if searcher.size() != self.num_blocks:
      raise IndexLoadError(
        f"the ScaNN index holds {searcher.size()} blocks and the generation "
        f"{self.num_blocks}; build it again"
      )
    self.report: dict[str, JsonValue] = {}
    self.tree = tree
    self._loaded = searcher
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


def load(
  directory: PathLike, blocks: Blocks, *, threads: int | None = None
) -> ScannIndex:
  """Loads the files of a searcher.

  Raises:
    IndexLoadError: ScaNN cannot read them, or they are of other blocks.
  """
  directory = Path(directory)
  return ScannIndex(
    files.load(directory),
    blocks,
    tree=files.read_tree(directory),
    threads=threads,
  )


def vectors_of(blocks: Blocks) -> Rows:
  """Returns the vectors of blocks.

  Raises:
    ValueError: The blocks have not been embedded.
  """
  if blocks.vectors is None:
    raise ValueError("ScaNN needs the blocks' vectors; embed them first")
  return blocks.vectors
