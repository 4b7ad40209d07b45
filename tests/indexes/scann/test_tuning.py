"""The tuner: the fastest point that meets a target."""

import numpy as np
import pytest

from realm_jax.indexes.ground_truth import GroundTruth
from realm_jax.indexes.protocol import SearchResult
from realm_jax.indexes.scann import tuning
from realm_jax.indexes.scann.config import ScannConfig
from realm_jax.indexes.scann.files import Tree
from realm_jax.indexes.scann.index import ScannIndex
from realm_jax.indexes.scann.settings import Structure
from realm_jax.indexes.scann.tuning import fastest_point
from tests.indexes.clustered import queries_of


class _SimulatedIndex(ScannIndex):
  """Finds what a function says, in as many seconds as another says."""

  def __init__(self, recall_of, seconds_of, *, num_leaves=64, num_blocks=5_000):
    self.num_blocks = num_blocks
    self.tree = Tree(Structure(num_leaves), 1, 1)
    self.clock = 0.0
    self._recall_of, self._seconds_of = recall_of, seconds_of

  def search_at(self, queries, k, leaves_searched, num_reordered):
    self.clock += self._seconds_of(leaves_searched, num_reordered)
    recall = self._recall_of(leaves_searched, num_reordered)
    hits = np.linspace(0, 1, 400).reshape(80, 5) < recall
    return SearchResult(hits.astype(np.int32), hits.astype(np.float32))


# Row 1 is among the best five of each query, and row 0 is not.
_TRUTH = GroundTruth(
  np.array([[0]] + 5 * [[1]], np.float32),
  queries_of(np.ones((80, 1), np.float32)),
  5,
)


@pytest.fixture
def simulate(monkeypatch):
  """Makes an index whose recall and time follow from how much it searches."""

  def simulated(*functions, **sizes):
    index = _SimulatedIndex(*functions, **sizes)
    monkeypatch.setattr(tuning.time, "perf_counter", lambda: index.clock)
    return index

  return simulated


def _recall_of(leaves, again):
  """More leaves and more reordered find more …"""
  return min(1, 0.3 * leaves) * min(1, again / 100)


def _seconds_of(leaves, again):
  """… and take longer."""
  return 1e-3 * leaves + 1e-5 * again


@pytest.fixture
def index(simulate):
  return simulate(_recall_of, _seconds_of)


def _fastest(index, target, **fixed):
  return fastest_point(index, _TRUTH, ScannConfig(**fixed), target=target)


def test_the_least_search_that_meets_the_target_is_chosen(index):
  point, points = _fastest(index, 0.88)
  assert (point.leaves_searched, point.num_reordered) == (3, 100)
  assert point.recall == pytest.approx(0.9, abs=0.01)
  # 80 queries in 3 × 1 ms + 100 × 0.01 ms.
  assert point.queries_per_second == pytest.approx(2e4)
  assert point in points and len(points) < 40


def test_a_miss_with_more_reordered_says_nothing_of_one_with_fewer(simulate):
  def recall_of(leaves, again):
    # Of one leaf 0.85 at any depth; of two, enough at 400 alone; then ever
    # more, and at six enough at any depth.
    known = {1: 0.85, 2: 1.0 if again >= 400 else 0.7, 3: 0.75, 4: 0.8}
    return known.get(leaves, 1.0)

  index = simulate(recall_of, lambda leaves, again: leaves + again)
  point, _ = _fastest(index, 0.9)
  assert (point.leaves_searched, point.num_reordered) == (6, 16)


def test_what_is_given_is_kept(index):
  point, _ = _fastest(index, 0.88, num_leaves_searched=8)
  assert (point.leaves_searched, point.num_reordered) == (8, 100)
  point, _ = _fastest(index, 0.1, num_leaves_searched=8, num_reordered=1_200)
  assert (point.leaves_searched, point.num_reordered) == (8, 1_200)


def test_without_enough_the_best_recall_is_chosen(index):
  point, _ = _fastest(index, 0.88, num_leaves_searched=2)
  assert point.recall == pytest.approx(0.6, abs=0.01)


def test_reordered_are_at_least_k_and_at_most_all(simulate):
  index = simulate(_recall_of, _seconds_of, num_leaves=2, num_blocks=20)
  point, points = _fastest(index, 2.0)
  assert {p.num_reordered for p in points} == {20}
  assert {p.leaves_searched for p in points} == {1, 2}
  assert point.leaves_searched == 2
