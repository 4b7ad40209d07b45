"""Recall against exact search."""

from typing import ClassVar

import numpy as np
import pytest

from realm_jax.indexes.exact import ExactIndex
from realm_jax.indexes.ground_truth import measure_recall
from realm_jax.indexes.protocol import QueryBatch, SearchResult

_DIM = 8


@pytest.fixture
def embeddings():
  rng = np.random.default_rng(7)
  return rng.standard_normal((150, _DIM)).astype(np.float32)


def _queries(count):
  vectors = np.random.default_rng(1).standard_normal((count, _DIM))
  return QueryBatch(np.zeros((count, 4), np.int32), vectors.astype(np.float32))


class _Shifted:
  """Finds the blocks of ranks 1 … k where exact search finds 0 … k − 1."""

  kind = "shifted"
  needs_vectors = True
  report: ClassVar[dict] = {}

  def __init__(self, embeddings):
    self.report = {}
    self._exact = ExactIndex(embeddings)
    self.num_blocks = self._exact.num_blocks

  def search(self, queries, k):
    found = self._exact.search(queries, k + 1)
    return SearchResult(found.rows[:, 1:], found.scores[:, 1:])


def test_exact_search_recalls_all(embeddings):
  recall = measure_recall(
    ExactIndex(embeddings), embeddings, _queries(20), (1, 8, 150, 151)
  )
  assert recall == {"1": 1.0, "8": 1.0, "150": 1.0}


def test_a_miss_in_k_costs_a_kth(embeddings):
  recall = measure_recall(
    _Shifted(embeddings), embeddings, _queries(20), (1, 4, 8)
  )
  assert recall == {"1": 0.0, "4": 0.75, "8": 0.875}
