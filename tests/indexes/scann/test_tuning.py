"""The tuner: the fastest point and structure that meet a target."""

import numpy as np
import pytest

from realm_jax.indexes.protocol import SearchResult
from realm_jax.indexes.scann import tuning
from realm_jax.indexes.scann.files import Tree
from realm_jax.indexes.scann.index import ScannIndex
from realm_jax.indexes.scann.settings import Structure


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
