"""Intervals and p-values, against their exact distributions."""

import itertools

import numpy as np
import pytest

from realm_jax.evaluation import scores


def test_an_interval_is_that_of_the_binomial_distribution():
  from scipy import stats

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
