"""The scores of each question, and the figures that are computed from them.

Published exact match on test sets stands in docs/results.md.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from realm_jax.console import figures_table
from realm_jax.evaluation.resampling import Scores, bootstrap_intervals

RECALL_DEPTHS = (1, 5, 20, 100)
# Documents that a judged query is given.
NUM_DOCUMENTS = 100
_TOP = 10
INTERVALS = "intervals"
_OF_DOCUMENTS = ("ndcg_at_10", "recall_at_100", "mrr_at_10")
# A line of `predictions.jsonl` or `retrieved.jsonl`.
Line = Mapping[str, Any]


def question_scores(lines: Sequence[Line]) -> Scores:
  """Scores each question of an evaluation.

  Returns:
    Of predictions, `exact_match`; `f1` (SQuAD's, over words; NaN where the
    answers are patterns, absent where all are); `exact_match_oracle`, whether
    any of the reader's best answers is correct; and `recall_read`, whether a
    block that the reader has read contains an answer. Of all lines, the
    retrieval scores of `retrieval_scores`: by the words of the answers
    `recall_at_1` and so on and `mrr`, and by their characters
    `recall_characters_at_1` and so on and `mrr_characters`. Of queries with
    graded documents, the scores of `document_scores`.
  """
  if is_judged(lines):
    return document_scores(lines)
  by_words, by_characters = (
    np.array([[block[name] for block in line["evidence"]] for line in lines])
    for name in ("contains_answer", "contains_characters")
  )
  scores = {}
  if "prediction" in lines[0]:
    f1 = [np.nan if line["f1"] is None else line["f1"] for line in lines]
    any_right = [any(a["correct"] for a in line["answers"]) for line in lines]
    read = np.array([[b["read"] for b in line["evidence"]] for line in lines])
    scores = {
      "exact_match": np.array([line["correct"] for line in lines], float),
      "f1": np.array(f1, float),
      "exact_match_oracle": np.array(any_right, float),
      "recall_read": (by_words & read).any(axis=1).astype(float),
    }
    if np.isnan(f1).all():
      del scores["f1"]
  return {
    **scores,
    **retrieval_scores(by_words),
    **retrieval_scores(by_characters, by="_characters"),
  }


def retrieval_scores(
  contains: Bool[np.ndarray, "n k"], *, by: str = ""
) -> Scores:
  """Scores the k blocks retrieved for each of n questions.

  The reciprocal rank of a question is 1 / rank of the first block that
  contains an answer, and 0 if none does, as in TREC's evaluation (Voorhees
  1999). So its mean is MRR@k, which grows with k.

  Args:
    contains: Whether each retrieved block, best first, contains an answer.
    by: Suffix of the names, for the way in which answers are found.

  Returns:
    `recall_at_1`, `_5`, `_20` and `_100`, but for those above k: whether an
    answer is in so many blocks; and `mrr`, the reciprocal rank.
  """
  scores = {
    f"recall{by}_at_{depth}": contains[:, :depth].any(axis=1).astype(float)
    for depth in RECALL_DEPTHS
    if depth <= contains.shape[1]
  }
  ranks = 1.0 + contains.argmax(axis=1)
  return scores | {f"mrr{by}": np.where(contains.any(axis=1), 1.0 / ranks, 0.0)}


def is_judged(lines: Sequence[Line]) -> bool:
  """Returns whether the lines are of queries with graded documents."""
  return isinstance(lines[0]["references"], Mapping)


def document_scores(lines: Sequence[Line]) -> Scores:
  """Scores the documents retrieved for judged queries, as trec_eval does.

  A document without a grade, or with one of 0 or less, is not relevant. A query
  without relevant documents scores 0.

  Each line has the first `NUM_DOCUMENTS` of a query, best first.

  Returns:
    `ndcg_at_10`: Σ grade / log₂(1 + rank) of the first 10 documents, divided by
    what the best order of all judged ones has (Järvelin & Kekäläinen 2002,
    with the grades as gains); `recall_at_100`: the share of the relevant
    documents that is among the first 100; and `mrr_at_10`: 1 / rank of the
    first relevant document, 0 if it is not among the first 10.
  """
  scores = {name: np.zeros(len(lines)) for name in _OF_DOCUMENTS}
  for i, line in enumerate(lines):
    wanted = np.array([g for g in line["references"].values() if g > 0])
    found = np.array([document["grade"] for document in line["evidence"]])
    ranks = 1 + np.flatnonzero(found > 0)
    if len(ranks):
      best = _gain(-np.sort(-wanted))
      scores["ndcg_at_10"][i] = _gain(np.maximum(found, 0)) / best
      scores["recall_at_100"][i] = len(ranks) / len(wanted)
      scores["mrr_at_10"][i] = 1.0 / ranks[0] if ranks[0] <= _TOP else 0.0
  return scores


def _gain(grades: Int[np.ndarray, " n"]) -> float:
  """Returns the discounted gain of the first documents."""
  top = grades[:_TOP]
  return float(np.sum(top / np.log2(2.0 + np.arange(len(top)))))


def means(scores: Scores) -> dict[str, float]:
  """Returns the mean of each score over the questions that have it."""
  return {name: float(np.nanmean(values)) for name, values in scores.items()}


def summarize(lines: Sequence[Line]) -> dict[str, Any]:
  """Returns the means of `question_scores`, `num_questions` and `intervals`.

  These are the 95 % bootstrap intervals of the means.
  """
  scores = question_scores(lines)
  return means(scores) | {
    "num_questions": len(lines),
    INTERVALS: bootstrap_intervals(scores),
  }


def summary_table(figures: Mapping[str, Any]) -> str:
  """Returns a line for each figure, which its interval follows."""
  shown = {name: v for name, v in figures.items() if name != INTERVALS}
  for name, (low, high) in figures.get(INTERVALS, {}).items():
    shown[name] = f"{shown[name]:.4f}  [{low:.4f}, {high:.4f}]"
  return figures_table(shown)
