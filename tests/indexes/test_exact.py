"""Exact search: right, deterministic, sharded, and compiled once."""

import jax
import numpy as np
import pytest

from realm_jax.indexes import exact
from realm_jax.indexes.protocol import QueryBatch
from realm_jax.partitioning.mesh import make_mesh


def _queries(vectors):
  return QueryBatch(
    token_ids=np.zeros((len(vectors), 4), np.int32), vectors=vectors
  )


def _whole_numbers(shape, seed, high=3):
  """Vectors whose products are exact in float32, and full of ties."""
  rng = np.random.default_rng(seed)
  return rng.integers(-high, high + 1, shape).astype(np.float32)


def _sorted_by_hand(queries, vectors, k):
  scores = queries.astype(np.float64) @ vectors.astype(np.float64).T
  rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
  return rows, np.take_along_axis(scores, rows, axis=1)


@pytest.mark.parametrize("num_blocks", [1, 7, 100, 1000, 5003])
@pytest.mark.parametrize("rows_per_step", [64, 1000, 8192])
def test_equals_a_full_sort_with_ties_to_the_lower_row(
  num_blocks, rows_per_step
):
  vectors = _whole_numbers((num_blocks, 6), seed=num_blocks)
  queries = _whole_numbers((5, 6), seed=1)
  index = exact.ExactIndex(vectors, rows_per_step=rows_per_step)
  for k in {1, min(9, num_blocks), min(700, num_blocks)}:
    found = index.search(_queries(queries), k)
    rows, scores = _sorted_by_hand(queries, vectors, k)
    np.testing.assert_array_equal(found.rows, rows)
    np.testing.assert_array_equal(found.scores, scores)


@pytest.mark.parametrize("model_parallelism", [1, 2])
@pytest.mark.parametrize("num_blocks", [3, 50, 4001])
def test_eight_devices_find_what_one_finds(num_blocks, model_parallelism):
  vectors = _whole_numbers((num_blocks, 6), seed=2)
  queries = _whole_numbers((13, 6), seed=3)
  mesh = make_mesh(model_parallelism=model_parallelism)
  sharded = exact.ExactIndex(vectors, mesh=mesh, rows_per_step=128)
  for k in {1, min(11, num_blocks)}:
    found = sharded.search(_queries(queries), k)
    rows, scores = _sorted_by_hand(queries, vectors, k)
    np.testing.assert_array_equal(found.rows, rows)
    np.testing.assert_array_equal(found.scores, scores)


def test_rows_that_pad_are_never_found_even_when_all_scores_are_negative():
  vectors = -np.ones((10, 4), np.float32)
  index = exact.ExactIndex(vectors, capacity=96)
  found = index.search(_queries(np.ones((2, 4), np.float32)), 10)
  np.testing.assert_array_equal(found.rows, [range(10)] * 2)
  np.testing.assert_array_equal(found.scores, np.full((2, 10), -4))


@pytest.mark.parametrize("devices", [1, 8])
def test_a_new_generation_of_the_same_capacity_compiles_nothing(devices):
  mesh = None if devices == 1 else make_mesh()
  queries = _whole_numbers((8, 5), seed=4)
  first = exact.ExactIndex(_whole_numbers((900, 5), seed=5), mesh=mesh)
  grown = exact.ExactIndex(
    _whole_numbers((907, 5), seed=6), mesh=mesh, capacity=first.capacity
  )
  first.search(_queries(queries), 3)
  compiled = exact._search._cache_size()
  found = grown.search(_queries(queries), 3)
  assert exact._search._cache_size() == compiled
  rows, _ = _sorted_by_hand(queries, _whole_numbers((907, 5), seed=6), 3)
  np.testing.assert_array_equal(found.rows, rows)


@pytest.mark.parametrize("devices", [1, 8])
def test_capacity_holds_every_block_and_wastes_little(devices):
  sizes = [exact.capacity_for(n, devices=devices) for n in range(1, 20_000)]
  counts = np.arange(1, 20_000)
  assert (sizes >= counts).all() and (np.diff(sizes) >= 0).all()
  assert (np.asarray(sizes) % devices == 0).all()
  assert (sizes - counts <= counts / 8 + 33 * devices).all()
  assert len(set(sizes)) < 100


def test_capacity_too_small_is_refused():
  with pytest.raises(ValueError, match="capacity=4 for 5 blocks"):
    exact.ExactIndex(np.zeros((5, 2), np.float32), capacity=4)


def test_bfloat16_vectors_accumulate_in_float32():
  # 256 products of 1: a bfloat16 sum of 257 ones would stop at 256.
  vectors = np.ones((3, 300), np.float32)
  index = exact.ExactConfig(dtype="bfloat16").build(
    exact.Blocks(num_blocks=3, vectors=vectors)
  )
  found = index.search(_queries(np.ones((1, 300), np.float32)), 1)
  assert found.scores[0, 0] == 300


def test_temporaries_do_not_grow_with_the_corpus():
  def temporary_bytes(capacity):
    compiled = exact._search.lower(
      jax.ShapeDtypeStruct((16, 32), np.float32),
      jax.ShapeDtypeStruct((capacity, 32), np.float32),
      jax.ShapeDtypeStruct((), np.int32),
      k=8,
      rows_per_step=1024,
      mesh=None,
    ).compile()
    return compiled.memory_analysis().temp_size_in_bytes

  assert temporary_bytes(64 * 1024) == temporary_bytes(4 * 1024)
