"""FAISS: near exact search, any description that finds k, safe to load."""

import numpy as np
import pytest

from realm_jax.indexes.faiss import FaissConfig
from realm_jax.indexes.protocol import (
  BuildOptions,
  IndexLoadError,
)
from tests.indexes.clustered import blocks_of, clustered, queries_of


@pytest.fixture
def _library():
  """Skips where the optional library is not installed."""
  pytest.importorskip("faiss").omp_set_num_threads(1)


needs_library = pytest.mark.usefixtures("_library")


def _queries(count):
  return queries_of(clustered(count, 2))


@needs_library
@pytest.mark.parametrize(
  "factory", [None, "IVF64,Flat", "PCA24,IVF64,PQ12x4fs,RFlat"]
)
def test_it_finds_nearly_all_that_exact_search_finds(factory):
  vectors, queries = clustered(10_000, 1), _queries(200)
  index = FaissConfig(factory=factory, nprobe=8).build(blocks_of(vectors))
  found = index.search(queries, 8)
  scores = queries.vectors @ vectors.T
  best = np.argsort(-scores, axis=1)[:, :8]
  hits = [len(set(a) & set(b)) for a, b in zip(found.rows, best, strict=True)]
  assert np.mean(hits) / 8 > 0.9
  np.testing.assert_allclose(
    found.scores, np.take_along_axis(scores, found.rows, axis=1), rtol=1e-4
  )


@needs_library
@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_what_cannot_be_loaded_is_refused(tmp_path, damage):
  vectors = clustered(400, 1)
  config = FaissConfig(brute_force_below=0)
  config.build(blocks_of(vectors), BuildOptions(directory=tmp_path / "faiss"))
  file = tmp_path / "faiss" / "index.faiss"
  content = file.read_bytes()
  if damage == "gone":
    file.unlink()
  else:
    file.write_bytes(content[: len(content) // 2])
  with pytest.raises(IndexLoadError, match="build it again"):
    config.load(tmp_path / "faiss", blocks_of(vectors))


@needs_library
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
