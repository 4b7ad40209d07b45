"""The best fillings, against all fillings."""

import itertools

import numpy as np
import pytest

from realm_jax.evaluation.explaining.fillings import (
  best_fillings,
  log_likelihoods,
)


@pytest.fixture
def log_probs() -> np.ndarray:
  """Three candidates, two masks, nine wordpieces."""
  logits = np.random.default_rng(3).normal(size=(3, 2, 9)) * 2
  return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def test_the_best_under_the_sum_of_all_pairs(log_probs):
  prior = np.array([0.5, 0.2, 0.3])

  def probability(pair) -> float:
    given = [np.exp(p[0, pair[0]] + p[1, pair[1]]) for p in log_probs]
    return float(prior @ given)

  pairs = itertools.product(range(9), repeat=2)
  best = sorted(pairs, key=lambda pair: -probability(pair))[:5]
  found = best_fillings(np.log(prior), log_probs, 5)
  assert found.token_ids.tolist() == [list(pair) for pair in best]
  np.testing.assert_allclose(
    np.exp(found.log_probabilities), [probability(pair) for pair in best]
  )
  by_token = log_likelihoods(log_probs, found.token_ids)
  assert by_token.shape == (5, 3, 2)
  np.testing.assert_allclose(found.by_candidate, by_token.sum(axis=-1))
