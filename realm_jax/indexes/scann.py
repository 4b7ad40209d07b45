"""Approximate search with ScaNN (Guo et al. 2020, arXiv 1908.10396)."""

import dataclasses
import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float32

from realm_jax.indexes.protocol import (
  Blocks,
  IndexLoadError,
  MissingLibraryError,
  PathLike,
  QueryBatch,
  SearchResult,
  check_k,
  check_vectors,
  in_order,
)


@dataclasses.dataclass(frozen=True)
class ScannConfig:
  """A tree of leaves, quantized scores, and exact scores for the best.

  Attributes:
    brute_force_below: smaller corpora are searched in full, which is faster.
    num_leaves: None is the square root of the number of blocks.
    num_leaves_searched: None is a tenth of the leaves.
    num_reordered: how many are scored exactly; at least k.
    dims_per_code: dimensions that share one 4-bit code.
    anisotropic_threshold: how much errors along the vector weigh.
    spherical: whether leaves are made by direction alone.
    training_sample: how many vectors the leaves are trained on.
    threads: for building and searching; None takes every core.
  """

  kind: ClassVar[str] = "scann"
  brute_force_below: int = 10_000
  num_leaves: int | None = None
  num_leaves_searched: int | None = None
  num_reordered: int = 400
  dims_per_code: int = 2
  anisotropic_threshold: float = 0.2
  spherical: bool = True
  training_sample: int = 100_000
  threads: int | None = None

  def build(self, blocks: Blocks, *, mesh: Any = None) -> "ScannIndex":
    """Builds in memory; the same vectors give the same index, bit for bit."""
    del mesh
    if blocks.vectors is None:
      raise ValueError("ScaNN needs the blocks' vectors; embed them first")
    vectors = np.ascontiguousarray(
      blocks.vectors[0 : blocks.num_blocks], np.float32
    )
    library = _library()
    builder = library.builder(vectors, 10, "dot_product")
    builder.set_n_training_threads(self.threads or 0)
    if blocks.num_blocks < self.brute_force_below:
      builder.score_brute_force()
    else:
      builder.tree(
        self._leaves(blocks.num_blocks),
        self._leaves_searched(blocks.num_blocks),
        training_sample_size=self.training_sample,
        spherical=self.spherical,
        # Its random start is seeded from nowhere; this one repeats.
        random_init=False,
      )
      builder.score_ah(
        self.dims_per_code,
        anisotropic_quantization_threshold=self.anisotropic_threshold,
        training_sample_size=self.training_sample,
      )
      builder.reorder(self.num_reordered)
    return ScannIndex(builder.build(), blocks, config=self)

  def load(
    self, directory: PathLike, blocks: Blocks, *, mesh: Any = None
  ) -> "ScannIndex":
    """Reads what `save` wrote.

    Raises:
      IndexLoadError: ScaNN cannot read it.
    """
    del mesh
    directory = Path(directory)
    # Where this file is, the library unpickles it.
    if (directory / "scann_docids.pkl").exists():
      raise IndexLoadError(f"{directory} holds a pickle, which is never read")
    try:
      searcher = _library().load_searcher(
        str(directory), assets_backcompat_shim=False
      )
    except (RuntimeError, ValueError, OSError) as error:
      raise IndexLoadError(
        f"ScaNN cannot read {directory}: {error}; build it again"
      ) from error
    return ScannIndex(searcher, blocks, config=self)

  def _leaves(self, num_blocks: int) -> int:
    return self.num_leaves or max(1, round(math.sqrt(num_blocks)))

  def _leaves_searched(self, num_blocks: int) -> int:
    leaves = self._leaves(num_blocks)
    return min(leaves, self.num_leaves_searched or max(1, leaves // 10))


class ScannIndex:
  """A ScaNN searcher; `ScannConfig` makes it."""

  kind = "scann"
  needs_vectors = True

  def __init__(self, searcher: Any, blocks: Blocks, *, config: ScannConfig):
    if blocks.vectors is None:
      raise ValueError("ScaNN needs the blocks' vectors; embed them first")
    self.num_blocks, self.dim = blocks.vectors.shape
    if searcher.size() != self.num_blocks:
      raise IndexLoadError(
        f"the ScaNN index holds {searcher.size()} blocks and the generation "
        f"{self.num_blocks}; build it again"
      )
    self._searcher = searcher
    self._is_tree = self.num_blocks >= config.brute_force_below
    self._leaves = config._leaves(self.num_blocks)
    self._leaves_searched = config._leaves_searched(self.num_blocks)
    self._num_reordered = config.num_reordered
    if config.threads:
      searcher.set_num_threads(config.threads)

  def search(self, queries: QueryBatch, k: int) -> SearchResult:
    """About the k best blocks of each query; always k of them."""
    check_k(k, self.num_blocks)
    vectors = check_vectors(queries, self.dim)
    if not self._is_tree:
      rows, scores = self._searcher.search_batched_parallel(vectors, k)
      return in_order(rows, scores)
    # Room for k whatever the leaves: twice as many as would do on average.
    leaves = max(
      self._leaves_searched, -(-2 * k * self._leaves // self.num_blocks)
    )
    rows, scores = self._search(vectors, k, leaves, max(self._num_reordered, k))
    # Where the leaves held fewer than k, it fills up with NaN.
    short = np.isnan(scores).any(axis=1)
    if short.any():
      rows, scores = rows.copy(), scores.copy()
      rows[short], scores[short] = self._search(
        vectors[short], k, self._leaves, self.num_blocks
      )
    return in_order(rows, scores)

  def _search(
    self,
    vectors: Float32[np.ndarray, "b d"],
    k: int,
    leaves: int,
    reordered: int,
  ) -> tuple[np.ndarray, np.ndarray]:
    return self._searcher.search_batched_parallel(
      vectors,
      k,
      pre_reorder_num_neighbors=min(reordered, self.num_blocks),
      leaves_to_search=min(leaves, self._leaves),
      # Half of the queries to each of two cores, rather than all to one.
      batch_size=max(1, min(256, len(vectors) // 2)),
    )

  def save(self, directory: PathLike) -> None:
    """Writes the tree, the codes and the vectors, with relative paths."""
    directory = Path(directory)
    directory.mkdir(parents=True)
    self._searcher.serialize(str(directory), relative_path=True)


def _library() -> Any:
  try:
    from scann.scann_ops.py import scann_ops_pybind
  except ImportError as error:
    raise MissingLibraryError(
      f"the index `scann` needs the library scann, which cannot be imported "
      f"here ({error}); `pip install scann`, or choose the index `exact`"
    ) from error
  return scann_ops_pybind
