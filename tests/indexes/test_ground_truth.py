"""Recall against exact search."""

from typing import ClassVar

import numpy as np

from realm_jax.indexes.exact import ExactIndex
from realm_jax.indexes.ground_truth import measure_recall
from realm_jax.indexes.protocol import QueryBatch, SearchResult


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


def test_a_miss_in_k_costs_a_kth():
  rng = np.random.default_rng(7)
  embeddings = rng.standard_normal((150, 8)).astype(np.float32)
  queries = QueryBatch.of_vectors(
    rng.standard_normal((20, 8)).astype(np.float32)
  )
  recall = measure_recall(_Shifted(embeddings), embeddings, queries, (1, 4, 8))
  assert recall == {"1": 0.0, "4": 0.75, "8": 0.875}
  exact = ExactIndex(embeddings)
  recall = measure_recall(exact, embeddings, queries, (1, 150, 151))
  assert recall == {"1": 1.0, "150": 1.0}
