"""Recall against exact search."""

import types

import numpy as np

from realm_jax.indexes.ground_truth import measure_recall
from realm_jax.indexes.protocol import QueryBatch, SearchResult


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
