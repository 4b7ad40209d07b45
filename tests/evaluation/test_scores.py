"""The scores of questions, their intervals and p-values.

Scores are worked out by hand; intervals and p-values have exact distributions.
"""

import itertools

import numpy as np
import pytest
from scipy import stats

from realm_jax.evaluation.scores import (
  bootstrap_intervals,
  means,
  permutation_p_values,
  question_scores,
)
from tests.evaluation.lines import line


def test_recall_and_reciprocal_rank_by_hand():
  # By words the first hit is at 2, 1, none, 6; by characters at 1 and 1 alone.
  lines = [
    line(0, words=[1, 2], characters=[0]),
    line(1, words=[0]),
    line(2),
    line(3, words=[5], characters=[]),
  ]
  assert means(question_scores(lines)) == {
    "recall_at_1": 0.25,
    "recall_at_5": 0.5,
    "mrr": pytest.approx((1 / 2 + 1 + 0 + 1 / 6) / 4),
    "recall_characters_at_1": 0.5,
    "recall_characters_at_5": 0.5,
    "mrr_characters": 0.5,
  }


def test_the_oracle_takes_the_best_of_what_was_read_and_answered():
  right, wrong = ({"text": "x", "correct": c} for c in (True, False))
  scores = question_scores(
    [
      line(0, prediction="x", correct=True, f1=1.0, answers=[right, wrong]),
      line(1, prediction="y", f1=0.5, answers=[wrong, right], words=[1, 4]),
      line(2, prediction="z", answers=[wrong], words=[3], read=[0, 3]),
      line(3, prediction="", answers=[]),
    ]
  )
  assert scores["exact_match"].tolist() == [1, 0, 0, 0]
  assert scores["exact_match_oracle"].tolist() == [1, 1, 0, 0]
  # Question 1 has its answer in blocks 1 and 4, of which none was read.
  assert scores["recall_read"].tolist() == [0, 0, 1, 0]
  assert scores["f1"].tolist() == [1, 0.5, 0, 0]


def test_patterns_have_no_f1():
  pattern = {"prediction": "x", "answer_kind": "regex", "f1": None}
  lines = [line(0, references=["Sept?"], **pattern), line(1, **pattern)]
  assert "f1" not in question_scores(lines)
  strings = line(2, prediction="x", f1=0.5)
  mixed = question_scores([*lines, strings])["f1"]
  assert np.isnan(mixed).tolist() == [True, True, False]
  assert means({"f1": mixed}) == {"f1": 0.5}


def test_an_interval_is_that_of_the_binomial_distribution():
  values = np.repeat([0.0, 1.0], [140, 60])
  intervals = bootstrap_intervals(
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
  found = permutation_p_values({"em": differences, "f1": -differences})
  assert found["em"] == pytest.approx(exact, abs=0.015)
  assert found["f1"] == found["em"]
