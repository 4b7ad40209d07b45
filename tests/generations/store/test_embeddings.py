"""Vectors in files of consecutive rows, and how old each is."""

import dataclasses

import numpy as np
import pytest

from realm_jax.generations.store import embeddings, layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.embeddings import Embeddings, ShardLayout
from realm_jax.generations.store.manifest import GenerationError
from tests.generations.conftest import DIM, fill

_ROWS, _DIM = 1500, 4


class Watched:
  """Vectors that keep count of how many are asked for at once."""

  def __init__(self, array):
    self._array = array
    self.shape, self.dtype = array.shape, array.dtype
    self.most = 0

  def __getitem__(self, rows):
    part = self._array[rows]
    self.most = max(self.most, len(part))
    return part


def _layout(rows=_ROWS, *, max_rows=1 << 18, dtype="float32"):
  return ShardLayout.of(rows, _DIM, dtype=dtype, max_rows=max_rows)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_all_arrive_in_order_and_few_at_a_time(tmp_path, dtype):
  known = np.arange(_ROWS * _DIM, dtype=np.float32).reshape(_ROWS, _DIM)
  vectors = Watched(known)
  shards = embeddings.copy_vectors(
    vectors, tmp_path, _layout(max_rows=600, dtype=dtype), step=7
  )
  assert vectors.most == 500
  assert len(shards) == 3
  assert {(s.oldest_step, s.newest_step) for s in shards} == {(7, 7)}
  wanted = known.astype(embeddings.DTYPES[dtype])
  stored = np.concatenate([np.load(tmp_path / shard.path) for shard in shards])
  assert stored.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("shape", [(9, _DIM), (11, _DIM), (10, 3), (10,)])
def test_another_shape_is_refused(tmp_path, shape):
  with pytest.raises(GenerationError, match="10 blocks and a retriever of 4"):
    embeddings.copy_vectors(
      np.zeros(shape, np.float32), tmp_path, _layout(10), step=0
    )


def test_a_vector_that_is_not_finite_is_refused(tmp_path):
  vectors = np.ones((_ROWS, _DIM), np.float32)
  vectors[1002, 1] = np.nan
  with pytest.raises(GenerationError, match="vector of block 1002"):
    embeddings.copy_vectors(vectors, tmp_path, _layout(max_rows=600), step=0)


def test_each_row_tells_its_step_and_each_shard_its_oldest(tmp_path, corpus):
  manifest = fill(tmp_path, corpus, 30)
  shards = ShardLayout.of(150, DIM, dtype="float32", max_rows=50)
  steps = np.full(150, 30)
  steps[60:70], steps[120:] = 10, 20
  written = [
    embeddings.write_shard(
      tmp_path,
      shards,
      i,
      np.ones((50, DIM), np.float32),
      steps[shards.rows(i)],
    )[0]
    for i in range(3)
  ]
  manifest = dataclasses.replace(manifest, embeddings=tuple(written))
  assert [s.oldest_step for s in manifest.embeddings] == [30, 10, 20]
  assert [bool(s.steps_path) for s in manifest.embeddings] == [
    False,
    True,
    True,
  ]
  assert manifest.oldest_step == 10
  names = [p.name for p in tmp_path.iterdir() if p.is_file()]
  manifest = dataclasses.replace(
    manifest, files=manifests.records_of(tmp_path, sorted(names))
  )
  (tmp_path / layout.MANIFEST).write_text(manifest.to_json())
  manifest = manifests.read(tmp_path)
  rows = np.array([149, 0, 65, 59, 60])
  stored = Embeddings(tmp_path, manifest)
  np.testing.assert_array_equal(stored.steps(rows), steps[rows])
