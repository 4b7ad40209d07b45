"""An edited index finds what an index over the new vectors would."""

import numpy as np
import pytest

from realm_jax.indexes.bm25 import Bm25Config
from realm_jax.indexes.exact import ExactConfig
from realm_jax.indexes.protocol import (
  Blocks,
  Index,
  QueryBatch,
  SearchError,
)
from realm_jax.serving.edited_index import EditedIndex
from realm_jax.serving.errors import EditError

_NUM_BLOCKS, _DIM, _K = 60, 4, 5


def _vectors(seed, number):
  # Small whole numbers, whose products are exact and often tie.
  rng = np.random.default_rng(seed)
  return rng.integers(-3, 4, (number, _DIM)).astype(np.float32)


@pytest.fixture(scope="module")
def index():
  return ExactConfig().build(Blocks(_NUM_BLOCKS, _vectors(0, _NUM_BLOCKS)))


@pytest.mark.parametrize(
  ("num_edited", "num_hidden"), [(0, 2), (1, 0), (7, 2), (16, 0)]
)
def test_it_finds_what_an_index_of_the_new_vectors_finds(
  index, num_edited, num_hidden
):
  rows = np.random.default_rng(num_edited).permutation(_NUM_BLOCKS)
  edited = dict(
    zip(rows[:num_edited].tolist(), 2 * _vectors(1, num_edited), strict=True)
  )
  # One of the hidden blocks is edited, too.
  first = max(0, num_edited - 1)
  hidden = set(rows[first : first + num_hidden].tolist())
  queries = _vectors(2, 7)
  view = EditedIndex(index, edited, hidden)
  assert isinstance(view, Index)
  found = view.search(QueryBatch.of_vectors(queries), _K)

  vectors = _vectors(0, _NUM_BLOCKS)
  for row, vector in edited.items():
    vectors[row] = vector
  scores = queries @ vectors.T
  scores[:, list(hidden)] = -np.inf
  # A stable sort: ties go to the lower row.
  best = np.argsort(-scores, axis=1, kind="stable")[:, :_K]
  np.testing.assert_array_equal(found.rows, best)
  np.testing.assert_array_equal(
    found.scores, np.take_along_axis(scores, best, axis=1)
  )
  assert view.num_blocks == _NUM_BLOCKS - num_hidden


def test_it_searches_no_more_blocks_than_are_left():
  index = ExactConfig().build(Blocks(4, _vectors(0, 4)))
  view = EditedIndex(index, {1: np.ones(_DIM, np.float32)}, frozenset({2}))
  queries = QueryBatch.of_vectors(_vectors(2, 1))
  assert sorted(view.search(queries, 3).rows[0]) == [0, 1, 3]
  with pytest.raises(SearchError, match="k=4 exceeds the corpus's 3 blocks"):
    view.search(queries, 4)


def test_an_index_of_words_hides_blocks_and_edits_none():
  tokens = [[5, 6], [5, 5], [7, 8], [9, 9]]
  blocks = Blocks(4, token_ids=lambda row: np.array(tokens[row]), vocab_size=10)
  index = Bm25Config().build(blocks)
  queries = QueryBatch(np.array([[5, 0]], np.int32))
  assert index.search(queries, 2).rows.tolist() == [[1, 0]]
  view = EditedIndex(index, {}, frozenset({1}))
  assert view.search(queries, 1).rows.tolist() == [[0]]
  with pytest.raises(EditError, match="'bm25', which counts words"):
    EditedIndex(index, {0: np.ones(_DIM, np.float32)})
