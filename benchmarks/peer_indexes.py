"""Indexes of other libraries, to compare in `benchmarks.index`.

Two are graphs, in which a query walks from block to block and keeps the `ef`
best: FAISS's HNSW and SVS's Vamana. The third is the inverted lists by RaBitQ's
authors. Each is an `IndexConfig`, so it is built, loaded and searched like the
package's indexes. `pip install faiss-cpu rabitqlib scalable-vs` installs the
libraries.
"""

import abc
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from realm_jax.indexes.protocol import (
  Blocks,
  IndexConfig,
  Tree,
  TreeIndex,
  library_of,
)

_THREADS = os.cpu_count() or 1
# Function from queries, k and the extent of the search to rows and scores.
_Search = Callable[[np.ndarray, int, Tree], tuple[np.ndarray, np.ndarray]]


class PeerIndex(TreeIndex):
  """An index that searches with a function of a library."""

  def __init__(self, blocks: Blocks, num_lists: int, search: _Search):
    self.num_blocks, self.dim = blocks.embedded().shape
    self.tree = Tree(num_lists, 1, 1)
    self._library_search = search

  def _search(self, vectors: np.ndarray, k: int, used: Tree) -> Any:
    return self._library_search(vectors, k, used)


@dataclasses.dataclass(frozen=True)
class PeerConfig(IndexConfig):
  """An index that a library builds and stores in files.

  Attributes:
    degree: Number of edges of each block in a graph.
    ef_construction: Number of blocks that a search during the build keeps.
    num_lists: Number of inverted lists; 1 for a graph.
    bits: Number of bits for each dimension of a vector; 32 stores the vector.
  """

  module: ClassVar[str]
  degree: int = 32
  ef_construction: int = 200
  num_lists: int = 1
  bits: int = 32

  @abc.abstractmethod
  def write(self, library: Any, vectors: np.ndarray, path: str) -> None:
    """Builds the index and writes its files."""

  @abc.abstractmethod
  def read(self, library: Any, path: str) -> _Search:
    """Reads the files.

    In a graph, a search keeps the number of blocks that the `Tree` reorders.
    """

  def build(self, blocks: Blocks, directory: Path | None = None) -> PeerIndex:
    """Builds the index with all vectors in memory."""
    assert directory is not None
    directory.mkdir(parents=True)
    vectors = np.array(blocks.embedded()[:], np.float32)
    self.write(self._library(), vectors, str(directory / "index"))
    return self.load(directory, blocks)

  def load(self, directory: Path, blocks: Blocks) -> PeerIndex:
    """Loads what `build` wrote."""
    search = self.read(self._library(), str(directory / "index"))
    return PeerIndex(blocks, self.num_lists, search)

  def _library(self) -> Any:
    return library_of(self.kind, self.module, "see benchmarks/peer_indexes.py")


class HnswConfig(PeerConfig):
  """FAISS's HNSW, with whole vectors."""

  kind: ClassVar[str] = "hnsw"
  module: ClassVar[str] = "faiss"

  def write(self, library: Any, vectors: np.ndarray, path: str) -> None:
    index = library.IndexHNSWFlat(
      vectors.shape[1], self.degree // 2, library.METRIC_INNER_PRODUCT
    )
    index.hnsw.efConstruction = self.ef_construction
    index.add(vectors)
    library.write_index(index, path)

  def read(self, library: Any, path: str) -> _Search:
    index = library.read_index(path)

    def search(vectors: np.ndarray, k: int, used: Tree) -> Any:
      index.hnsw.efSearch = used.num_reordered
      scores, rows = index.search(vectors, k)
      return rows, scores

    return search


class RabitqConfig(PeerConfig):
  """Inverted lists of RaBitQ codes, by RaBitQ's authors."""

  kind: ClassVar[str] = "rabitq"
  module: ClassVar[str] = "rabitqlib"

  def write(self, library: Any, vectors: np.ndarray, path: str) -> None:
    count, dim = vectors.shape
    clusters = library.RaBitQKMeans(dim, self.num_lists, num_threads=_THREADS)
    clusters.train(vectors)
    index = library.IvfIndex(
      dim, count, self.num_lists, nbits=self.bits, metric="ip"
    )
    index.build(
      vectors, clusters.centroids, clusters.assignments, num_threads=_THREADS
    )
    index.save(path)

  def read(self, library: Any, path: str) -> _Search:
    index = library.IvfIndex.load(path)

    def search(vectors: np.ndarray, k: int, used: Tree) -> Any:
      nprobe = used.leaves_searched
      rows, distances = index.search(vectors, k, nprobe, num_threads=_THREADS)
      return rows.astype(np.int32), 1 - distances

    return search


class SvsConfig(PeerConfig):
  """SVS's Vamana, a graph, with vectors or codes of 4 + 8 bits (LVQ)."""

  kind: ClassVar[str] = "svs"
  module: ClassVar[str] = "svs"

  def write(self, library: Any, vectors: np.ndarray, path: str) -> None:
    source = vectors
    if self.bits < 32:
      library.write_vecs(vectors, f"{path}.fvecs")
      loader = library.VectorDataLoader(
        f"{path}.fvecs", library.DataType.float32, dims=vectors.shape[1]
      )
      source = library.LVQLoader(loader, primary=4, residual=8)
    index = library.Vamana.build(
      library.VamanaBuildParameters(
        # Below 1, as the documentation requires for inner products.
        alpha=0.95,
        graph_max_degree=self.degree,
        window_size=self.ef_construction,
      ),
      source,
      library.DistanceType.MIP,
      num_threads=_THREADS,
    )
    index.save(f"{path}.config", f"{path}.graph", f"{path}.data")

  def read(self, library: Any, path: str) -> _Search:
    loader = library.VectorDataLoader if self.bits == 32 else library.LVQLoader
    index = library.Vamana(
      f"{path}.config",
      library.GraphLoader(f"{path}.graph"),
      loader(f"{path}.data"),
      library.DistanceType.MIP,
      num_threads=_THREADS,
    )

    def search(vectors: np.ndarray, k: int, used: Tree) -> Any:
      index.search_window_size = used.num_reordered
      rows, scores = index.search(vectors, k)
      return rows.astype(np.int32), scores

    return search


KINDS = {
  config.kind: (__name__, config.__name__)
  for config in (HnswConfig, RabitqConfig, SvsConfig)
}
