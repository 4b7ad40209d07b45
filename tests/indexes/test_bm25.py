"""BM25 against the formula, word by word."""

import math

import numpy as np
import pytest

from realm_jax.indexes.bm25 import Bm25Config
from realm_jax.indexes.protocol import Blocks, QueryBatch

_BLOCKS = [[5, 6, 6, 7], [6, 8], [5, 5, 5, 9, 9, 10], [11]]


def _by_the_formula(query, k1, b):
  """Lucene's BM25 (Kamphuis et al. 2020), without its constant factor."""
  average = sum(map(len, _BLOCKS)) / len(_BLOCKS)
  scores = []
  for block in _BLOCKS:
    score = 0.0
    for word in query:
      df = sum(word in other for other in _BLOCKS)
      idf = math.log(1 + (len(_BLOCKS) - df + 0.5) / (df + 0.5))
      tf = block.count(word)
      norm = k1 * (1 - b + b * len(block) / average)
      score += idf * tf / (tf + norm) if tf else 0.0
    scores.append(score)
  return scores


@pytest.mark.parametrize("k1, b", [(0.9, 0.4), (1.5, 0.75)])
def test_scores_are_those_of_the_formula(k1, b):
  words = [5, 6, 9]
  # Special wordpieces and padding score nothing.
  query = np.array([[2, *words, 4, 3, 0, 0]], np.int32)
  blocks = Blocks(4, token_ids=lambda i: np.array(_BLOCKS[i]), vocab_size=20)
  found = Bm25Config(k1=k1, b=b).build(blocks).search(QueryBatch(query), 4)
  scores = _by_the_formula(words, k1, b)
  order = sorted(range(4), key=lambda row: (-scores[row], row))
  np.testing.assert_array_equal(found.rows[0], order)
  np.testing.assert_allclose(
    found.scores[0], [scores[row] for row in order], rtol=1e-6
  )
