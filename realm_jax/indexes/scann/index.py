"""Searches with ScaNN what its builder wrote."""

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

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
from realm_jax.indexes.scann import files as scann_files
from realm_jax.indexes.scann.files import Tree


class ScannIndex:
  """A ScaNN searcher; `load` and the builder make it.

  Attributes:
    report: how it was made and what was measured, of one that was just built.
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
    self.report: dict[str, Any] = {}
    self._loaded = searcher
    self._threads = threads or os.cpu_count() or 1
    self._tree = tree

  @functools.cached_property
  def _searcher(self) -> Any:
    """The searcher, with threads of its own for searching.

    Those that it came with have the priority of the thread that loaded it,
    which may be low; these have that of the thread that searches first, which
    works beside them.
    """
    if self._threads > 1:
      self._loaded.set_num_threads(self._threads - 1)
    return self._loaded

  def searching(self, tree: Tree) -> "ScannIndex":
    """The same, and how much of it `search` looks at."""
    self._tree = tree
    return self

  def search(self, queries: QueryBatch, k: int) -> SearchResult:
    """About the k best blocks of each query; always k of them."""
    check_k(k, self.num_blocks)
    if self._tree is None:
      vectors = check_vectors(queries, self.dim)
      return in_order(*self._search_batched(vectors, k))
    return self.search_at(
      queries, k, self._tree.leaves_searched, self._tree.num_reordered
    )

  def search_at(
    self, queries: QueryBatch, k: int, leaves_searched: int, num_reordered: int
  ) -> SearchResult:
    """Searches so many leaves of the tree and reorders so many vectors."""
    assert self._tree is not None
    vectors = check_vectors(queries, self.dim)
    leaves = self._tree.structure.num_leaves
    # Room for k whatever the leaves: twice as many as would do on average.
    searched = max(leaves_searched, -(-2 * k * leaves // self.num_blocks))
    rows, scores = self._search(vectors, k, searched, max(num_reordered, k))
    # Where the leaves held fewer than k, it fills up with NaN.
    short = np.isnan(scores).any(axis=1)
    if short.any():
      rows, scores = rows.copy(), scores.copy()
      rows[short], scores[short] = self._search(
        vectors[short], k, leaves, self.num_blocks
      )
    return in_order(rows, scores)

  def _search(
    self,
    vectors: Float32[np.ndarray, "b d"],
    k: int,
    leaves: int,
    reordered: int,
  ) -> tuple[np.ndarray, np.ndarray]:
    assert self._tree is not None
    return self._search_batched(
      vectors,
      k,
      pre_reorder_num_neighbors=min(reordered, self.num_blocks),
      leaves_to_search=min(leaves, self._tree.structure.num_leaves),
    )

  def _search_batched(
    self, vectors: Float32[np.ndarray, "b d"], k: int, **settings: int
  ) -> tuple[np.ndarray, np.ndarray]:
    if self._threads == 1:
      # A parallel search with no thread beside would end the process.
      return self._loaded.search_batched(vectors, k, **settings)
    # Half of the queries to each of two cores, rather than all to one.
    size = max(1, min(256, len(vectors) // 2))
    return self._searcher.search_batched_parallel(
      vectors, k, batch_size=size, **settings
    )


def load(
  directory: PathLike, blocks: Blocks, *, threads: int | None = None
) -> ScannIndex:
  """Reads the files of a searcher.

  Raises:
    IndexLoadError: ScaNN cannot read them, or they are of other blocks.
  """
  directory = Path(directory)
  return ScannIndex(
    scann_files.load(directory),
    blocks,
    tree=scann_files.read_tree(directory),
    threads=threads,
  )


def vectors_of(blocks: Blocks) -> Rows:
  """The vectors of blocks that have been embedded."""
  if blocks.vectors is None:
    raise ValueError("ScaNN needs the blocks' vectors; embed them first")
  return blocks.vectors
