"""The sum over candidates: shares, and the gradient of its logarithm."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realm_jax.evaluation.explaining.marginal import marginalize

_CANDIDATES = st.lists(
  st.tuples(st.floats(-20, 20), st.floats(-60, 0)), min_size=1, max_size=8
)


def _log_likelihood(scores, log_likelihoods) -> float:
  """log Σ_z p(z|x) p(y|z,x), as the paper writes it."""
  weights = [math.exp(score) for score in scores]
  terms = (
    w / sum(weights) * math.exp(own)
    for w, own in zip(weights, log_likelihoods, strict=True)
  )
  return math.log(sum(terms))


def test_two_candidates_by_hand():
  # p(z|x) = 1/4, 3/4 and p(y|z,x) = 1/2, 1/10: p(y|x) = 1/8 + 3/40 = 1/5.
  found = marginalize(np.log([1.0, 3.0]), np.log([0.5, 0.1]))
  assert found.log_likelihood == pytest.approx(math.log(0.2))
  np.testing.assert_allclose(found.shares, [5 / 8, 3 / 8])
  # [p(y|z,x) / p(y|x) − 1] p(z|x) = [5/2 − 1] / 4 and [1/2 − 1] · 3/4.
  np.testing.assert_allclose(found.rewards, [3 / 8, -3 / 8])


@settings(max_examples=15)
@given(_CANDIDATES)
def test_shares_sum_to_one_and_rewards_to_zero(candidates):
  scores, log_likelihoods = np.array(candidates).T
  found = marginalize(scores, log_likelihoods)
  assert found.log_likelihood == pytest.approx(
    _log_likelihood(scores, log_likelihoods)
  )
  assert found.shares is not None and found.rewards is not None
  assert found.shares.sum() == pytest.approx(1)
  assert found.rewards.sum() == pytest.approx(0, abs=1e-9)


@settings(max_examples=15)
@given(_CANDIDATES)
def test_rewards_are_the_gradient_by_the_scores(candidates):
  scores, log_likelihoods = np.array(candidates).T
  rewards = marginalize(scores, log_likelihoods).rewards
  step = 1e-5
  for k, reward in enumerate(rewards):
    ends = []
    for sign in (1, -1):
      moved = scores.copy()
      moved[k] += sign * step
      ends.append(_log_likelihood(moved, log_likelihoods))
    assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(reward, abs=1e-5)


def test_an_answer_that_some_or_all_candidates_exclude():
  found = marginalize(np.zeros(2), np.array([-np.inf, -1.0]))
  np.testing.assert_allclose(found.shares, [0, 1])
  np.testing.assert_allclose(found.rewards, [-0.5, 0.5])
  none = marginalize(np.zeros(2), np.full(2, -np.inf))
  assert none.log_likelihood == -np.inf
  assert (none.share(0), none.reward(1)) == (None, None)
