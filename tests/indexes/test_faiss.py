"""FAISS: near exact search, any description that finds k, safe to load."""

import pytest

from realm_jax.indexes.faiss import FaissConfig
from realm_jax.indexes.protocol import BuildOptions, IndexLoadError
from tests.indexes.clustered import (
  blocks_of,
  check_found,
  clustered,
  queries_of,
)


@pytest.fixture(autouse=True)
def _library():
  """Skips where the optional library is not installed."""
  pytest.importorskip("faiss").omp_set_num_threads(1)


@pytest.mark.parametrize("factory", [None, "PCA24,IVF64,PQ12x4fs,RFlat"])
def test_it_finds_nearly_all_that_exact_search_finds(factory):
  vectors, queries = clustered(10_000, 1), queries_of(clustered(200, 2))
  index = FaissConfig(factory=factory, nprobe=8).build(blocks_of(vectors))
  check_found(index.search(queries, 8), queries, vectors, min_recall=0.9)


@pytest.mark.parametrize("num_bytes", [None, 400])
def test_a_file_that_is_gone_or_cut_is_refused(tmp_path, num_bytes):
  blocks, config = blocks_of(clustered(400, 1)), FaissConfig()
  config.build(blocks, BuildOptions(directory=tmp_path / "faiss"))
  file = tmp_path / "faiss" / "index.faiss"
  content = file.read_bytes()
  file.unlink()
  if num_bytes is not None:
    file.write_bytes(content[:num_bytes])
  with pytest.raises(IndexLoadError, match="build it again"):
    config.load(tmp_path / "faiss", blocks)


@pytest.mark.parametrize(
  "factory, message",
  [
    ("HNSW8", "may find fewer than k"),
    ("IVF4,Nonsense", "FAISS cannot build 'IVF4,Nonsense'"),
  ],
)
def test_a_description_that_will_not_do_is_refused(factory, message):
  config = FaissConfig(factory=factory, brute_force_below=0)
  with pytest.raises(ValueError, match=message):
    config.build(blocks_of(clustered(400, 1)))
