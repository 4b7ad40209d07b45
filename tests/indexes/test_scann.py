"""ScaNN's tree: near exact search, and safe to load."""

import numpy as np
import pytest

from realm_jax.indexes.protocol import Blocks, IndexLoadError, QueryBatch
from realm_jax.indexes.scann import ScannConfig


def _clustered(count, seed):
  rng = np.random.default_rng(seed)
  centres = np.random.default_rng(0).standard_normal((64, 32))
  noise = 0.7 * rng.standard_normal((count, 32))
  return (centres[rng.integers(64, size=count)] + noise).astype(np.float32)


def _blocks(vectors):
  return Blocks(num_blocks=len(vectors), vectors=vectors)


def test_a_tree_finds_nearly_all_that_exact_search_finds():
  vectors, queries = _clustered(12_000, 1), _clustered(200, 2)
  index = ScannConfig().build(_blocks(vectors))
  found = index.search(QueryBatch(np.zeros((200, 1), np.int32), queries), 8)
  scores = queries @ vectors.T
  best = np.argsort(-scores, axis=1)[:, :8]
  hits = [len(set(a) & set(b)) for a, b in zip(found.rows, best, strict=True)]
  assert np.mean(hits) / 8 > 0.9
  np.testing.assert_allclose(
    found.scores, np.take_along_axis(scores, found.rows, axis=1), rtol=1e-4
  )


@pytest.mark.parametrize("damage", ["gone", "pickle", "other"])
def test_what_cannot_be_loaded_is_refused(tmp_path, damage):
  vectors = _clustered(100, 1)
  ScannConfig().build(_blocks(vectors)).save(tmp_path / "scann")
  if damage == "gone":
    (tmp_path / "scann" / "scann_assets.pbtxt").unlink()
  elif damage == "pickle":
    (tmp_path / "scann" / "scann_docids.pkl").write_bytes(b"cos\nsystem\n.")
  else:
    vectors = _clustered(101, 1)
  with pytest.raises(IndexLoadError):
    ScannConfig().load(tmp_path / "scann", _blocks(vectors))


def test_threads_change_nothing_but_the_speed(tmp_path):
  vectors, queries = _clustered(12_000, 1), _clustered(64, 2)
  batch = QueryBatch(np.zeros((64, 1), np.int32), queries)
  one = ScannConfig(threads=1).build(_blocks(vectors)).search(batch, 8)
  two = ScannConfig(threads=2).build(_blocks(vectors)).search(batch, 8)
  np.testing.assert_array_equal(one.rows, two.rows)
