"""Approximate search with FAISS (Douze et al. 2024, arXiv 2401.08281)."""

import dataclasses
import math
import os
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float32

from realm_jax.indexes import mapped
from realm_jax.indexes.protocol import (
  OF_HOST,
  PLAIN,
  Blocks,
  BuildOptions,
  IndexLoadError,
  MissingLibraryError,
  PathLike,
  QueryBatch,
  Rows,
  SearchResult,
  check_k,
  check_vectors,
  in_order,
)

_FILE = "index.faiss"
_ROWS_PER_COPY = 1 << 16
# Training takes runs of consecutive rows from all over the corpus.
_ROWS_PER_RUN = 16
# Of a search on GPUs, lists probed and blocks found.
_GPU_LIMIT = 2048


@dataclasses.dataclass(frozen=True)
class FaissConfig:
  """Inverted lists, quantized scores, and exact scores for the best.

  Attributes:
    brute_force_below: smaller corpora are searched in full.
    factory: FAISS's description of the index, of inverted lists or `Flat`.
      None is `IVF<√N>,PQ<d/2>x4fs,RFlat`.
    nprobe: lists that are searched.
    num_reordered: how many are scored exactly, where the description ends in
      `RFlat`; at least k.
    training_sample: how many vectors lists and codes are trained on.
    threads: for building and searching, of this host, and so in no manifest;
      None takes every core.
    on_gpu: whether to search on a GPU, the first, where FAISS sees any;
      descriptions that it has no GPU code for are refused.
  """

  kind: ClassVar[str] = "faiss"
  may_crash: ClassVar[bool] = True
  brute_force_below: int = 10_000
  factory: str | None = None
  nprobe: int = 4
  num_reordered: int = 400
  training_sample: int = 200_000
  threads: int | None = dataclasses.field(default=None, metadata=OF_HOST)
  on_gpu: bool = False

  def build(
    self, blocks: Blocks, options: BuildOptions = PLAIN
  ) -> "FaissIndex":
    """Builds in memory; the same vectors give the same index.

    Raises:
      ValueError: FAISS cannot make the described index of these vectors.
      OSError: the disk is full.
    """
    if blocks.vectors is None:
      raise ValueError("FAISS needs the blocks' vectors; embed them first")
    library = _library()
    _set_threads(library, self.threads)
    described = self._described(*blocks.vectors.shape)
    try:
      index = library.index_factory(
        blocks.vectors.shape[1], described, library.METRIC_INNER_PRODUCT
      )
      index.train(_sample(blocks.vectors, self.training_sample))
      for start in range(0, blocks.num_blocks, _ROWS_PER_COPY):
        stop = min(start + _ROWS_PER_COPY, blocks.num_blocks)
        options.check()
        part = blocks.vectors[start:stop]
        index.add(_float32(part))
        mapped.let_go(part)
    except RuntimeError as error:
      raise ValueError(
        f"FAISS cannot make {described!r} of {blocks.num_blocks} vectors of "
        f"{blocks.vectors.shape[1]} dimensions: {error}; choose another "
        "`factory`"
      ) from error
    if options.directory is not None:
      options.directory.mkdir(parents=True)
      # By its own writer, what a full disk does not take may be lost without
      # a word.
      with (options.directory / _FILE).open("wb") as file:
        library.write_index(index, library.PyCallbackIOWriter(file.write))
    return FaissIndex(index, blocks, config=self)

  def load(
    self, directory: PathLike, blocks: Blocks, *, mesh: Any = None
  ) -> "FaissIndex":
    """Reads what `build` wrote, memory-mapped where FAISS can.

    Raises:
      IndexLoadError: FAISS cannot read it, or it is of other blocks.
    """
    del mesh
    library = _library()
    path = Path(directory) / _FILE
    try:
      index = library.read_index(str(path), library.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
      raise IndexLoadError(
        f"FAISS cannot read {path}: {error}; build it again"
      ) from error
    return FaissIndex(index, blocks, config=self)

  def _described(self, num_blocks: int, dim: int) -> str:
    if num_blocks < self.brute_force_below:
      return "Flat"
    lists = max(1, round(math.sqrt(num_blocks)))
    return self.factory or f"IVF{lists},PQ{max(1, dim // 2)}x4fs,RFlat"


class FaissIndex:
  """An index of FAISS; `FaissConfig` makes it."""

  kind = "faiss"
  needs_vectors = True

  def __init__(self, index: Any, blocks: Blocks, *, config: FaissConfig):
    if blocks.vectors is None:
      raise ValueError("FAISS needs the blocks' vectors; embed them first")
    self.num_blocks, self.dim = blocks.vectors.shape
    if (index.ntotal, index.d) != (self.num_blocks, self.dim):
      raise IndexLoadError(
        f"the FAISS index holds {index.ntotal} blocks of {index.d} dimensions "
        f"and the generation {self.num_blocks} of {self.dim}; build it again"
      )
    self.report: dict[str, Any] = {}
    self._library = _library()
    self._config = config
    self._index = index
    self._lists = self._num_lists(index)
    self._moved = index
    if config.on_gpu and self._library.get_num_gpus() > 0:
      self._moved = self._on_gpu(index)

  @property
  def num_lists(self) -> int:
    """How many inverted lists there are; 1 where all blocks are searched."""
    return self._lists

  def search(self, queries: QueryBatch, k: int) -> SearchResult:
    """About the k best blocks of each query; always k of them."""
    return self.search_at(
      queries, k, self._config.nprobe, self._config.num_reordered
    )

  def search_at(
    self, queries: QueryBatch, k: int, nprobe: int, num_reordered: int
  ) -> SearchResult:
    """Searches so many lists, and scores so many exactly."""
    check_k(k, self.num_blocks)
    vectors = check_vectors(queries, self.dim)
    _set_threads(self._library, self._config.threads)
    # Room for k whatever the lists: twice as many as would do on average.
    probed = min(
      self._lists, max(nprobe, -(-2 * k * self._lists // self.num_blocks))
    )
    fits = max(k, probed) <= _GPU_LIMIT
    rows, scores = self._search(
      self._moved if fits else self._index,
      vectors,
      k,
      probed,
      max(num_reordered, k),
    )
    # Where the lists held fewer than k, it fills up with −1.
    short = (rows < 0).any(axis=1)
    if short.any():
      rows[short], scores[short] = self._search(
        self._index, vectors[short], k, self._lists, self.num_blocks
      )
    return in_order(rows, scores)

  def _search(
    self,
    index: Any,
    vectors: Float32[np.ndarray, "b d"],
    k: int,
    probed: int,
    reordered: int,
  ) -> tuple[np.ndarray, np.ndarray]:
    parameters = None
    if self._lists > 1:
      parameters = self._parameters(
        self._index, k, probed, min(reordered, self.num_blocks)
      )
    scores, rows = index.search(vectors, k, params=parameters)
    return rows, scores

  def _on_gpu(self, index: Any) -> Any:
    """A copy on the first GPU; of several, none takes a search's settings.

    Raises:
      IndexLoadError: FAISS has no GPU code for it.
    """
    self._gpu = self._library.StandardGpuResources()
    try:
      return self._library.index_cpu_to_gpu(self._gpu, 0, index)
    except RuntimeError as error:
      raise IndexLoadError(
        f"FAISS cannot search the `factory` {self._config.factory!r} on a GPU: "
        f"{error}; choose another, such as 'IVF1024,PQ32' or 'IVF1024,Flat', "
        "or on_gpu=False"
      ) from error

  def _parameters(self, index: Any, k: int, probed: int, reordered: int) -> Any:
    """The settings of a search, nested as the index is."""
    library = self._library
    index = library.downcast_index(index)
    if isinstance(index, library.IndexRefine):
      return library.IndexRefineSearchParameters(
        k_factor=reordered / k,
        base_index_params=self._parameters(
          index.base_index, k, probed, reordered
        ),
      )
    if isinstance(index, library.IndexPreTransform):
      return library.SearchParametersPreTransform(
        index_params=self._parameters(index.index, k, probed, reordered)
      )
    return library.SearchParametersIVF(nprobe=probed)

  def _num_lists(self, index: Any) -> int:
    """How many inverted lists there are; 1 where all blocks are searched.

    Raises:
      ValueError: it is an index that cannot be searched in full.
    """
    library = self._library
    index = library.downcast_index(index)
    if isinstance(index, library.IndexRefine):
      return self._num_lists(index.base_index)
    if isinstance(index, library.IndexPreTransform):
      return self._num_lists(index.index)
    if isinstance(index, library.IndexIVF):
      return index.nlist
    if isinstance(index, library.IndexFlat):
      return 1
    raise ValueError(
      f"the `factory` {self._config.factory!r} makes an {type(index).__name__}"
      ", which may find fewer than k; want inverted lists (`IVF…`) or `Flat`"
    )


def _sample(vectors: Rows, count: int) -> Float32[np.ndarray, "n d"]:
  """About so many vectors, in runs from all over the corpus."""
  num_blocks = vectors.shape[0]
  if count >= num_blocks:
    return _float32(vectors[0:num_blocks])
  runs = max(1, count // _ROWS_PER_RUN)
  starts = np.linspace(0, num_blocks - _ROWS_PER_RUN, runs).astype(int)
  return _float32(
    np.concatenate([vectors[i : i + _ROWS_PER_RUN] for i in starts.tolist()])
  )


def _float32(vectors: np.ndarray) -> Float32[np.ndarray, "n d"]:
  return np.ascontiguousarray(vectors, np.float32)


def _set_threads(library: Any, threads: int | None) -> None:
  """For this thread's calls alone: OpenMP keeps the number by thread."""
  library.omp_set_num_threads(threads or os.cpu_count() or 1)


def _library() -> Any:
  try:
    import faiss
  except ImportError as error:
    raise MissingLibraryError(
      f"the index `faiss` needs the library faiss, which cannot be imported "
      f"here ({error}); `pip install 'realm_jax[faiss]'`, or choose the index "
      "`scann`"
    ) from error
  return faiss
