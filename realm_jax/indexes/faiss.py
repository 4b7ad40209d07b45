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
  Index,
  IndexConfig,
  IndexLoadError,
  QueryBatch,
  SearchResult,
  check_k,
  check_vectors,
  in_order,
  library_of,
  sample_vectors,
)
from realm_jax.settings import NonNegativeInt, PositiveInt
from realm_jax.storage.local_disk import drop_pages

_FILE = "index.faiss"
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
      with (directory / _FILE).open("wb") as file:
        library.write_index(index, library.PyCallbackIOWriter(file.write))
    return FaissIndex(index, blocks, config=self)

  def load(self, directory: Path, blocks: Blocks) -> "FaissIndex":
    """Loads what `build` wrote, memory-mapped where FAISS can do so."""
    library = _library()
    path = directory / _FILE
    try:
      index = library.read_index(str(path), library.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
      raise IndexLoadError(
        f"FAISS cannot read {path}: {error}; build it again"
      ) from error
    return FaissIndex(index, blocks, config=self)


class FaissIndex(Index):
  """An index of FAISS; `FaissConfig` builds and loads it."""

  kind = "faiss"
  needs_vectors = True

  def __init__(self, index: Any, blocks: Blocks, *, config: FaissConfig):
    self.num_blocks, self.dim = blocks.embedded().shape
    self._library = library = _library()
    self._config = config
    # What it is downcast to does not keep the index alive.
    self._owner = index
    self._index = library.downcast_index(index)
    # None where all blocks are searched.
    self._lists = library.try_extract_index_ivf(index)
    if self._lists is None and not isinstance(self._index, library.IndexFlat):
      raise RealmError(
        f"the `factory` {config.factory!r} makes an "
        f"{type(self._index).__name__}, which may find fewer than k; want "
        "inverted lists (`IVF…`) or `Flat`"
      )

  def search(self, queries: QueryBatch, k: int) -> SearchResult:
    """Returns k blocks for each query, approximately the best."""
    check_k(k, self.num_blocks)
    vectors = check_vectors(queries, self.dim)
    lists = 1 if self._lists is None else self._lists.nlist
    # Twice as many lists as hold k blocks on average: they may be uneven.
    nprobe = max(self._config.nprobe, -(-2 * k * lists // self.num_blocks))
    reordered = self._config.num_reordered
    rows, scores = self._search(vectors, k, min(nprobe, lists), reordered)
    # Where the lists hold fewer than k blocks, FAISS returns −1.
    short = (rows < 0).any(axis=1)
    if short.any():
      rows[short], scores[short] = self._search(
        vectors[short], k, lists, self.num_blocks
      )
    return in_order(rows, scores)

  def _search(
    self,
    vectors: Float32[np.ndarray, "b d"],
    k: int,
    nprobe: int,
    num_reordered: int,
  ) -> tuple[Int[np.ndarray, "b k"], Float32[np.ndarray, "b k"]]:
    if self._lists is not None:
      self._lists.nprobe = nprobe
    if isinstance(self._index, self._library.IndexRefine):
      reordered = min(max(num_reordered, k), self.num_blocks)
      self._index.k_factor = reordered / k
    scores, rows = self._index.search(vectors, k)
    return rows, scores


def _library() -> Any:
  advice = "`pip install 'realm_jax[faiss]'`, or choose the index `scann`"
  return library_of("faiss", "faiss", advice)
