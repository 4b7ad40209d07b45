"""The aggregate figures, against values worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

from realm_jax.evaluation import metrics

# Four questions, three retrieved blocks each: first hit at 2, 1, none, 3.
CONTAINS = np.array([[0, 1, 1], [1, 0, 0], [0, 0, 0], [0, 0, 1]], bool)


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
  assert metrics.retrieval_metrics(CONTAINS, depths=(1, 2, 3, 20)) == {
    "recall_at_1": 0.25,
    "recall_at_2": 0.5,
    "recall_at_3": 0.75,
    "mrr": pytest.approx((1 / 2 + 1 + 0 + 1 / 3) / 4),
  }


@given(
  hnp.arrays(
    bool, hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=8)
  )
)
def test_recall_grows_with_depth_and_bounds_the_reciprocal_rank(contains):
  depths = range(1, contains.shape[1] + 1)
  recalls = [metrics.recall_at(contains, depth) for depth in depths]
  assert recalls == sorted(recalls)
  mrr = metrics.mean_reciprocal_rank(contains)
  assert recalls[0] - 1e-12 <= mrr <= recalls[-1] + 1e-12
  # A gain of recall at rank r is worth 1 / r.
  gains = np.diff(recalls, prepend=0)
  assert mrr == pytest.approx(
    float((gains / np.arange(1, len(gains) + 1)).sum())
  )


def test_what_cannot_be_scored_is_refused():
  with pytest.raises(ValueError, match="1 predictions for 2 questions"):
    metrics.answer_metrics(["a"], [["a"], ["b"]])
  with pytest.raises(ValueError, match="at least one question"):
    metrics.answer_metrics([], [])
  with pytest.raises(ValueError, match="recall@4 of 4 questions with 3"):
    metrics.recall_at(CONTAINS, 4)
