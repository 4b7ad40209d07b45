"""Vectors in files of consecutive rows, and how old each is."""

import numpy as np
import pytest

from realm_jax.generations.manifest import GenerationError
from realm_jax.generations.vectors import Embeddings, ShardLayout, write_shard
from tests.generations.conftest import DIM

_LAYOUT = ShardLayout.of(150, DIM, dtype="float32", max_rows=50)


def _write(directory, steps, vectors=None):
  if vectors is None:
    vectors = np.ones((150, DIM), np.float32)
  return [
    write_shard(
      directory,
      _LAYOUT,
      shard,
      vectors[_LAYOUT.rows(shard)],
      steps[_LAYOUT.rows(shard)],
    )[0]
    for shard in range(len(_LAYOUT))
  ]


def test_a_vector_that_is_not_finite_is_refused(tmp_path):
  vectors = np.ones((150, DIM), np.float32)
  vectors[102, 1] = np.nan
  with pytest.raises(GenerationError, match="vector of block 102"):
    _write(tmp_path, np.zeros(150, int), vectors)


def test_each_row_tells_its_step_and_each_shard_its_oldest(tmp_path):
  steps = np.full(150, 30)
  steps[60:70], steps[120:] = 10, 20
  shards = _write(tmp_path, steps)
  assert [shard.oldest_step for shard in shards] == [30, 10, 20]
  assert [bool(shard.steps_path) for shard in shards] == [False, True, True]
  rows = np.array([149, 0, 65, 59, 60])
  stored = Embeddings(tmp_path, shards, dim=DIM, dtype="float32")
  np.testing.assert_array_equal(stored.steps(rows), steps[rows])
