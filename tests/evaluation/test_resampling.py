"""Intervals and p-values, against their exact distributions."""

import itertools

import numpy as np
import pytest
from scipy import stats

from realm_jax.evaluation import scores


def test_an_interval_is_that_of_the_binomial_distribution():
  values = np.repeat([0.0, 1.0], [140, 60])
  intervals = scores.bootstrap_intervals(
    {"em": values, "half": values / 2}, num_resamples=4000
  )
  # A resample's sum has Binomial(200, 0.3).
  exact = stats.binom(200, 0.3).ppf([0.025, 0.975]) / 200
  assert intervals["em"] == pytest.approx(exact.tolist(), abs=0.006)
  # The same resamples are taken for all scores.
  assert intervals["half"] == pytest.approx(np.divide(intervals["em"], 2))


def test_a_p_value_is_the_share_of_all_signs():
  differences = np.array([1.0, 1, 1, 0, 1, -1, 0.5, 0, 1])
  sums = [
    abs(np.dot(signs, differences))
    for signs in itertools.product([-1, 1], repeat=len(differences))
  ]
  exact = np.mean(np.array(sums) >= abs(differences.sum()))
  found = scores.permutation_p_values({"em": differences, "f1": -differences})
  assert found["em"] == pytest.approx(exact, abs=0.015)
  assert found["f1"] == found["em"]


def test_sets_of_questions_have_the_same_weight_and_their_own_signs():
  strata = [{"em": np.array([1.0, 1, 0, -1])}, {"em": np.array([1.0, 0])}]
  # The mean of two means; a question of the second set weighs twice as much.
  weights = np.array([1, 1, -1, 2]) / 4
  sums = [
    abs(np.dot(signs, weights))
    for signs in itertools.product([-1, 1], repeat=len(weights))
  ]
  exact = np.mean(np.array(sums) >= abs(weights.sum()) - 1e-9)
  found = scores.permutation_p_values(*strata)
  assert found["em"] == pytest.approx(exact, abs=0.015)
