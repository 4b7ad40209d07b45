"""Recall against exact search, and the queries it is measured on."""

from typing import ClassVar

import numpy as np
import pytest

from realm_jax.generations.building.recall import (
  held_out_queries,
  measure_recall,
)
from realm_jax.generations.store.embeddings import Embeddings
from realm_jax.indexes.exact import ExactIndex
from realm_jax.indexes.protocol import QueryBatch, SearchResult
from tests.generations.conftest import DIM, fill


@pytest.fixture
def embeddings(tmp_path, corpus):
  return Embeddings(tmp_path, fill(tmp_path, corpus, 7))


def _queries(count):
  vectors = np.random.default_rng(1).standard_normal((count, DIM))
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


def test_queries_are_sentences_of_the_corpus(corpus):
  queries = held_out_queries(corpus, count=40, query_length=6)
  assert queries.shape == (40, 6) and queries.dtype == np.int32
  sentences = {
    tuple(corpus.block(row).body_token_ids[start:limit].tolist())
    for row in range(corpus.num_blocks)
    for start, limit in corpus.block(row).sentences
  }
  for query in queries.tolist():
    end = query.index(3)
    assert query[0] == 2 and not any(query[end + 1 :])
    assert tuple(query[1:end]) in sentences
  np.testing.assert_array_equal(
    queries, held_out_queries(corpus, count=40, query_length=6)
  )
