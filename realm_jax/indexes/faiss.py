"""Approximate search with FAISS (Douze et al. 2024, arXiv 2401.08281)."""

import dataclasses
import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float32, Int

from realm_jax.errors import RealmError
from realm_jax.indexes.protocol import (
  Blocks,
  IndexConfig,
  IndexLoadError,
  Tree,
  TreeIndex,
  library_of,
  sample_vectors,
)
from realm_jax.settings import NonNegativeInt, PositiveInt
from realm_jax.storage.local_disk import drop_pages

FILE = "index.faiss"
_ROWS_PER_COPY = 1 << 16
_TRAINING_SAMPLE = 200_000


@dataclasses.dataclass(frozen=True)
class FaissConfig(IndexConfig):
  """Inverted lists, quantized scores, and exact scores for the best.

  Attributes:
    brute_force_below: Number of blocks below which all are searched.
    factory: FAISS's description of the index, inverted lists or `Flat`. None
      is `IVF<√N>,PQ<d/2>x4fs,RFlat`.
    nprobe: Number of lists that a query searches.
    num_reordered: Number of blocks that are scored exactly, at least k, if the
      description ends in `RFlat`.
  """

  kind: ClassVar[str] = "faiss"
  brute_force_below: NonNegativeInt = 10_000
  factory: str | None = None
  nprobe: PositiveInt = 4
  num_reordered: PositiveInt = 400

  def build(
    self, blocks: Blocks, directory: Path | None = None
  ) -> "FaissIndex":
    """Builds in memory; the same vectors give the same index."""
    vectors = blocks.embedded()
    num_blocks, dim = vectors.shape
    library = _library()
    lists = max(1, round(math.sqrt(num_blocks)))
    described = self.factory or f"IVF{lists},PQ{max(1, dim // 2)}x4fs,RFlat"
    if num_blocks < self.brute_force_below:
      described = "Flat"
    try:
      index = library.index_factory(
        dim, described, library.METRIC_INNER_PRODUCT
      )
      index.train(sample_vectors(vectors, _TRAINING_SAMPLE))
      for start in range(0, num_blocks, _ROWS_PER_COPY):
        blocks.check()
        part = vectors[start : min(start + _ROWS_PER_COPY, num_blocks)]
        index.add(np.ascontiguousarray(part, np.float32))
        drop_pages(part)
    except RuntimeError as error:
      raise RealmError(
        f"FAISS cannot build {described!r} over {num_blocks} vectors of {dim} "
        f"dimensions: {error}; choose another `factory`"
      ) from error
    if directory is not None:
      directory.mkdir(parents=True)
      # FAISS's own writer may not report a full disk.
      with (directory / FILE).open("wb") as file:
        library.write_index(index, library.PyCallbackIOWriter(file.write))
    return FaissIndex(index, blocks, config=self)

  def load(self, directory: Path, blocks: Blocks) -> "FaissIndex":
    """Loads the files of `build`, memory-mapped if FAISS can do so."""
    library = _library()
    path = directory / FILE
    try:
      index = library.read_index(str(path), library.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
      raise IndexLoadError(
        f"FAISS cannot read {path}: {error}; build it again"
      ) from error
    return FaissIndex(index, blocks, config=self)


class FaissIndex(TreeIndex):
  """An index of FAISS; `FaissConfig` builds and loads it."""

  kind = "faiss"

  def __init__(self, index: Any, blocks: Blocks, *, config: FaissConfig):
    self.num_blocks, self.dim = blocks.embedded().shape
    self._library = library = _library()
    # The downcast object does not keep the index alive.
    self._owner = index
    self._index = library.downcast_index(index)
    # None if all blocks are searched.
    self._lists = library.try_extract_index_ivf(index)
    lists = 1 if self._lists is None else self._lists.nlist
    self.tree = Tree(lists, config.nprobe, config.num_reordered)
    if self._lists is None and not isinstance(self._index, library.IndexFlat):
      raise RealmError(
        f"the `factory` {config.factory!r} makes an "
        f"{type(self._index).__name__}, which may find fewer than k; want "
        "inverted lists (`IVF…`) or `Flat`"
      )

  def _search(
    self, vectors: Float32[np.ndarray, "b d"], k: int, used: Tree
  ) -> tuple[Int[np.ndarray, "b k"], Float32[np.ndarray, "b k"]]:
    if self._lists is not None:
      self._lists.nprobe = used.leaves_searched
    if isinstance(self._index, self._library.IndexRefine):
      self._index.k_factor = used.num_reordered / k
    scores, rows = self._index.search(vectors, k)
    return rows, scores


def _library() -> Any:
  advice = "`pip install 'realm_jax[faiss]'`, or choose the index `scann`"
  return library_of("faiss", "faiss", advice)
