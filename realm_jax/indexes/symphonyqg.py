"""Search in a graph: SymphonyQG (Gou et al. 2024, arXiv 2411.12229).

A query walks from block to block, guided by RaBitQ codes of the neighbors (Gao
and Long 2024, arXiv 2405.12497). Compared with inverted lists, a graph takes
longer to build and answers faster, which suits an index that is built once.
"""

import dataclasses
import errno
import json
import os
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
)
from realm_jax.settings import NonNegativeInt, PositiveInt
from realm_jax.storage.json_files import write_json

FILE, _LENGTH_FILE = "index.symphonyqg", "length.json"
_ROWS_PER_COPY = 1 << 16
# The library needs a dimension that is a multiple of this.
_DIM_MULTIPLE = 64
# Relative difference below which lengths of vectors count as equal, to allow
# for rounding of normalized vectors. It bounds the error of their scores.
_LENGTH_TOLERANCE = 1e-3
_THREADS = os.cpu_count() or 1


@dataclasses.dataclass(frozen=True)
class SymphonyQgConfig(IndexConfig):
  """A graph of blocks whose edges have codes of the neighbors.

  Two builds over the same vectors may differ: the library takes no seed.

  Attributes:
    brute_force_below: Number of blocks below which all are searched.
    degree: Number of edges of a block, a multiple of 32.
    ef_construction: Number of blocks that the search of a build keeps.
    ef_search: Number of blocks that a query's search keeps, at least 2k. The
      recall rises with it.
  """

  kind: ClassVar[str] = "symphonyqg"
  brute_force_below: NonNegativeInt = 10_000
  degree: PositiveInt = 32
  ef_construction: PositiveInt = 200
  ef_search: PositiveInt = 100

  def build(
    self, blocks: Blocks, directory: Path | None = None
  ) -> "SymphonyQgIndex":
    """Builds with all vectors in memory."""
    stored = blocks.embedded()
    num_blocks, dim = stored.shape
    # An additional dimension makes all vectors equally long, so that distances
    # and inner products give the same order. The library's own search by inner
    # products finds nothing if the vectors have a common mean.
    width = -(-(dim + 1) // _DIM_MULTIPLE) * _DIM_MULTIPLE
    vectors = np.zeros((num_blocks, width), np.float32)
    for start in range(0, num_blocks, _ROWS_PER_COPY):
      blocks.check()
      part = slice(start, min(start + _ROWS_PER_COPY, num_blocks))
      vectors[part, :dim] = stored[part]
    lengths = np.linalg.norm(vectors, axis=1)
    length = float(lengths.max())
    if lengths.min() >= (1 - _LENGTH_TOLERANCE) * length:
      width = -(-dim // _DIM_MULTIPLE) * _DIM_MULTIPLE
      vectors = np.ascontiguousarray(vectors[:, :width])
    else:
      vectors[:, dim] = np.sqrt(length**2 - lengths**2)
    graph = None
    if self._has_graph(blocks):
      try:
        graph = _library().SymqgIndex(
          width, max_degree=self.degree, metric="l2"
        )
        graph.build(
          vectors, ef_construction=self.ef_construction, num_threads=_THREADS
        )
      except (RuntimeError, ValueError) as error:
        raise RealmError(
          f"SymphonyQG cannot build a graph of degree {self.degree} over "
          f"{num_blocks} vectors: {error}; choose another `degree`"
        ) from error
    if directory is not None:
      directory.mkdir(parents=True)
      write_json(directory / _LENGTH_FILE, length)
      if graph is not None:
        try:
          graph.save(str(directory / FILE))
        except RuntimeError as error:
          # The library does not say why; a full disk is the common reason.
          path, reason = str(directory / FILE), f"{error}; is the disk full?"
          raise OSError(errno.ENOSPC, reason, path) from error
    return SymphonyQgIndex(graph, length, blocks, config=self)

  def load(self, directory: Path, blocks: Blocks) -> "SymphonyQgIndex":
    """Loads the files of `build` into memory."""
    graph, path = None, directory / FILE
    try:
      length = float(json.loads((directory / _LENGTH_FILE).read_text()))
      if self._has_graph(blocks):
        graph = _library().SymqgIndex.load(str(path))
    except (OSError, RuntimeError, TypeError, ValueError) as error:
      raise IndexLoadError(
        f"SymphonyQG cannot read {path}: {error}; build it again"
      ) from error
    return SymphonyQgIndex(graph, length, blocks, config=self)

  def _has_graph(self, blocks: Blocks) -> bool:
    return blocks.num_blocks >= max(self.brute_force_below, 2)


class SymphonyQgIndex(TreeIndex):
  """A graph, or all vectors; `SymphonyQgConfig` builds and loads it."""

  kind = "symphonyqg"

  def __init__(
    self, graph: Any, length: float, blocks: Blocks, *, config: SymphonyQgConfig
  ):
    vectors = blocks.embedded()
    self.num_blocks, self.dim = vectors.shape
    self.tree = Tree(1, 1, config.ef_search)
    self._graph, self._length = graph, length
    self._vectors = None
    if graph is None:
      self._vectors = np.array(vectors[: self.num_blocks], np.float32)

  def _search(
    self, vectors: Float32[np.ndarray, "b d"], k: int, used: Tree
  ) -> tuple[Int[np.ndarray, "b k"], Float32[np.ndarray, "b k"]]:
    if self._vectors is not None:
      scores = vectors @ self._vectors.T
      rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
      return rows.astype(np.int32), np.take_along_axis(scores, rows, axis=1)
    padding = self._graph.dim - self.dim
    # A search that keeps only k blocks misses many of them.
    kept = min(max(used.num_reordered, 2 * k), self.num_blocks)
    rows, squares = self._graph.search(
      *(np.pad(vectors, ((0, 0), (0, padding))), k, kept),
      num_threads=_THREADS,
    )
    # |x − z|² = |x|² + |z|² − 2 x·z, and all |z| are equal.
    lengths = (vectors**2).sum(axis=1, keepdims=True) + self._length**2
    return rows.astype(np.int32), (lengths - squares) / 2


def _library() -> Any:
  advice = "`pip install 'realm_jax[symphonyqg]'`, or choose the index `faiss`"
  return library_of("symphonyqg", "rabitqlib", advice)
