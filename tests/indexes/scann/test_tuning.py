"""The tuner: the fastest point and structure that meet a target."""

import numpy as np
import pytest

from realm_jax.indexes.ground_truth import GroundTruth
from realm_jax.indexes.protocol import SearchResult
from realm_jax.indexes.scann import tuning
from realm_jax.indexes.scann.config import ScannConfig
from realm_jax.indexes.scann.files import Tree
from realm_jax.indexes.scann.index import ScannIndex
from realm_jax.indexes.scann.settings import Structure
from realm_jax.indexes.scann.tuning import (
  Point,
  choose_structure,
  fastest_point,
)
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


def _chosen(speeds, *, target=0.5, **settings):
  """Tries structures whose queries per second a function gives."""
  seen = []

  def measure(structure):
    seen.append(structure)
    recall, speed = speeds(structure)
    point = Point(1, 10, recall, speed)
    return point, [point]

  structure, tried = choose_structure(
    Structure(64),
    settings.pop("variants", ()),
    measure,
    target=target,
    num_blocks=100_000,
    sampled=100_000,
    **settings,
  )
  assert [trial.structure for trial in tried] == seen
  return structure


@pytest.mark.parametrize("best", [16, 64, 512])
def test_the_best_number_of_leaves_may_lie_beyond_worse_ones(best):
  def speeds(structure):
    # Nothing between the first and the best is any better.
    return 1.0, 1e3 if structure.num_leaves == best else 1e2

  assert _chosen(speeds).num_leaves == best


def test_changes_are_kept_one_on_top_of_the_other():
  chosen = _chosen(
    lambda s: (1.0, 100.0 + 50 * s.spherical + 50 * (s.reordering == "int8")),
    variants=[
      ({"spherical": True}, 1.05),
      ({"soar_lambda": 1.5}, 1.05),
      ({"reordering": "int8"}, 1.05),
    ],
    may_vary_leaves=False,
  )
  assert chosen == Structure(64, spherical=True, reordering="int8")


def test_below_the_target_recall_decides():
  chosen = _chosen(
    lambda s: (0.9 if s.spherical else 0.3, 1.0 if s.spherical else 100.0),
    variants=[({"spherical": True}, 1.05)],
    may_vary_leaves=False,
  )
  assert chosen.spherical


def test_a_small_gain_is_scatter():
  chosen = _chosen(
    lambda s: (1.0, 102.0 if s.spherical else 100.0),
    variants=[({"spherical": True}, 1.05)],
    may_vary_leaves=False,
  )
  assert not chosen.spherical


def test_the_vectors_in_the_leaves_grow_with_the_corpus():
  # Half of the time is for 1,000 vectors of a leaf: ten times the corpus has
  # ten times as many.
  costs = tuning.Costs(num_blocks=100_000, sampled=10_000)

  def point(structure, leaves, reordered):
    rows = 10_000 * leaves / structure.num_leaves
    seconds = 1 + rows / 1_000 + reordered / 100
    return Point(leaves, reordered, 1.0, 1 / seconds)

  for num_leaves in (10, 20):
    structure = Structure(num_leaves)
    costs.learn(
      structure,
      [point(structure, i, n) for i in (1, 2, 4) for n in (50, 100)],
    )
  structure = Structure(10)
  predicted = costs.queries_per_second(structure, point(structure, 1, 50))
  assert 1 / predicted == pytest.approx(1 + 10 + 0.5, rel=1e-6)
  # Second leaves are as many again.
  spilled = Structure(10, soar_lambda=1.0)
  of_both = costs.queries_per_second(spilled, Point(1, 50, 1.0, 1 / 3.5))
  assert 1 / of_both == pytest.approx(1 + 20 + 0.5, rel=1e-6)
