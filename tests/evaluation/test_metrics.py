"""The aggregate figures, against values worked out by hand."""

import numpy as np
import pytest

from realm_jax.evaluation import metrics


def test_answer_metrics_by_hand():
  figures = metrics.answer_metrics(
    ["the moon", "14 December 1972", "Rome"],
    [["Moon", "Luna"], ["December 1972"], ["Paris"]],
  )
  assert figures["exact_match"] == pytest.approx(1 / 3)
  assert figures["f1"] == pytest.approx((1 + 0.8 + 0) / 3)


def test_patterns_are_matched_and_bad_ones_counted():
  figures = metrics.answer_metrics(
    ["Sept", "Chin", "x"],
    [["Sept?(ember)?"], ["China", "["], ["["]],
    kind="regex",
  )
  assert figures == {"exact_match": pytest.approx(1 / 3), "bad_patterns": 1}


def test_recall_and_reciprocal_rank_by_hand():
  # Four questions, six retrieved blocks each: first hit at 2, 1, none, 6.
  contains = np.zeros((4, 6), bool)
  contains[[0, 0, 1, 3], [1, 2, 0, 5]] = True
  assert metrics.retrieval_metrics(contains) == {
    "recall_at_1": 0.25,
    "recall_at_5": 0.5,
    "mrr": pytest.approx((1 / 2 + 1 + 0 + 1 / 6) / 4),
  }
