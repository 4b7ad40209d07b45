"""Exact search: right, deterministic, sharded, compiled once; and recall."""

import types

import jax
import numpy as np
import pytest

from realm_jax.indexes import exact, exact_search
from realm_jax.indexes.exact import ExactConfig, measure_recall
from realm_jax.indexes.protocol import QueryBatch, SearchResult
from realm_jax.partitioning.mesh import make_mesh


def _whole_numbers(shape, seed, high=3):
  """Vectors whose products are exact in float32, and full of ties."""
  rng = np.random.default_rng(seed)
  return rng.integers(-high, high + 1, shape).astype(np.float32)


def _sorted_by_hand(queries, vectors, k):
  scores = queries.astype(np.float64) @ vectors.astype(np.float64).T
  rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
  return rows, np.take_along_axis(scores, rows, axis=1)


@pytest.mark.parametrize(
  ("num_blocks", "rows_per_step", "mesh"),
  [
    (1, None, None),
    (1000, 1000, None),
    (5003, 64, None),
    (5003, None, None),
    # The others are on eight devices.
    (3, 128, {}),
    (4001, 128, {"fsdp": 2, "model_parallelism": 2}),
    (4001, 128, {"model_parallelism": 4}),
  ],
)
def test_equals_a_full_sort_with_ties_to_the_lower_row(
  num_blocks, rows_per_step, mesh
):
  vectors = _whole_numbers((num_blocks, 6), seed=num_blocks)
  queries = _whole_numbers((13, 6), seed=1)
  index = exact.ExactIndex(
    vectors,
    ExactConfig(rows_per_step=rows_per_step),
    mesh=None if mesh is None else make_mesh(**mesh),
  )
  assert index.capacity < num_blocks * 9 / 8 + 8 * exact_search.GROUP
  # 600 are more than one of eight devices has.
  for k in {1, min(11, num_blocks), min(600, num_blocks)}:
    found = index.search(QueryBatch.of_vectors(queries), k)
    rows, scores = _sorted_by_hand(queries, vectors, k)
    np.testing.assert_array_equal(found.rows, rows)
    np.testing.assert_array_equal(found.scores, scores)


@pytest.mark.parametrize("devices", [1, 8])
def test_a_new_snapshot_of_the_same_capacity_compiles_nothing(devices):
  mesh = None if devices == 1 else make_mesh()
  queries = _whole_numbers((8, 5), seed=4)
  first = exact.ExactIndex(_whole_numbers((900, 5), seed=5), mesh=mesh)
  grown = exact.ExactIndex(
    _whole_numbers((907, 5), seed=6),
    ExactConfig(capacity=first.capacity),
    mesh=mesh,
  )
  first.search(QueryBatch.of_vectors(queries), 3)
  compiled = exact_search.search._cache_size()
  found = grown.search(QueryBatch.of_vectors(queries), 3)
  assert exact_search.search._cache_size() == compiled
  rows, _ = _sorted_by_hand(queries, _whole_numbers((907, 5), seed=6), 3)
  np.testing.assert_array_equal(found.rows, rows)


def test_bfloat16_vectors_accumulate_in_float32():
  # 256 products of 1: a bfloat16 sum of 257 ones would stop at 256.
  vectors = np.ones((3, 300), np.float32)
  index = ExactConfig(dtype="bfloat16").build(
    exact.Blocks(num_blocks=3, vectors=vectors)
  )
  found = index.search(QueryBatch.of_vectors(np.ones((1, 300), np.float32)), 1)
  assert found.scores[0, 0] == 300


def _one_device():
  return make_mesh(devices=jax.devices()[:1])


@pytest.mark.parametrize(("rows_first", "k"), [(False, 8), (True, 300)])
def test_temporaries_do_not_grow_with_the_corpus(rows_first, k):
  def temporary_bytes(capacity):
    compiled = exact_search.search.lower(
      jax.ShapeDtypeStruct((16, 32), np.float32),
      jax.ShapeDtypeStruct((capacity, 32), np.float32),
      jax.ShapeDtypeStruct((), np.int32),
      plan=exact_search.SearchPlan(k, 4096, rows_first),
      mesh=_one_device(),
    ).compile()
    return compiled.memory_analysis().temp_size_in_bytes

  large = temporary_bytes(1 << 20)
  assert large == temporary_bytes(1 << 14)
  # Some copies of a step's scores, and far less than the vectors.
  assert large < 10 * 4 * 16 * 4096


@pytest.mark.parametrize("k", [64, 700])
def test_the_layout_of_tpus_finds_the_same(k):
  vectors = _whole_numbers((4000, 6), seed=7)
  queries = _whole_numbers((150, 6), seed=8)
  plan = exact_search.SearchPlan(k, 1024, rows_first=True)
  scores, rows = exact_search.search(
    queries, vectors, np.int32(3990), plan=plan, mesh=_one_device()
  )
  by_hand = _sorted_by_hand(queries, vectors[:3990], k)
  np.testing.assert_array_equal(rows, by_hand[0])
  np.testing.assert_array_equal(scores, by_hand[1])


def test_a_query_that_is_not_a_number_still_gets_rows():
  vectors = _whole_numbers((300, 4), seed=11)
  queries = np.full((2, 4), np.nan, np.float32)
  queries[1] = 1
  found = exact.ExactIndex(vectors).search(QueryBatch.of_vectors(queries), 5)
  assert (found.rows >= 0).all() and (found.rows < 300).all()
  rows, _ = _sorted_by_hand(queries[1:], vectors, 5)
  np.testing.assert_array_equal(found.rows[1:], rows)


def test_a_miss_in_k_costs_a_kth():
  rng = np.random.default_rng(7)
  vectors, queries = rng.standard_normal((2, 150, 8)).astype(np.float32)
  order = np.argsort(-queries @ vectors.T, axis=1).astype(np.int32)

  def recall(*ks, first):
    """The recall of a search that finds the ranks from `first` on."""

    def search(queries, k):
      rows = order[:, first : first + k]
      return SearchResult(rows, np.zeros(rows.shape, np.float32))

    index = types.SimpleNamespace(num_blocks=150, search=search)
    return measure_recall(index, vectors, QueryBatch.of_vectors(queries), ks)

  assert recall(1, 4, 8, first=1) == {"1": 0.0, "4": 0.75, "8": 0.875}
  assert recall(1, 150, 151, first=0) == {"1": 1.0, "150": 1.0}
