"""The scores of each question, from which all figures are computed.

Published exact match on test sets stands in docs/results.md.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from realm_jax.text import answers

RECALL_DEPTHS = (1, 5, 20, 100)

# A line of `predictions.jsonl` or `retrieved.jsonl`.
Line = Mapping[str, Any]
# Scores in [0, 1] by name, a value for each question; NaN where it has none.
Scores = dict[str, Float[np.ndarray, " n"]]


def question_scores(lines: Sequence[Line]) -> Scores:
  """Scores each question of an evaluation.

  Returns:
    Of predictions, `exact_match`; `f1` (SQuAD's, over words; NaN where the
    answers are patterns, absent where all are); `exact_match_oracle`, whether
    any of the reader's best answers is correct; and `recall_read`, whether a
    block that the reader has read contains an answer. Of all lines, the
    retrieval scores of `retrieval_scores`: by the words of the answers
    `recall_at_1` and so on and `mrr`, and by their characters
    `recall_characters_at_1` and so on and `mrr_characters`.
  """
  by_words, by_characters = (
    np.array([[block[name] for block in line["evidence"]] for line in lines])
    for name in ("contains_answer", "contains_characters")
  )
  scores: Scores = {}
  if "prediction" in lines[0]:
    read = np.array([[b["read"] for b in line["evidence"]] for line in lines])
    scores |= _answer_scores(lines)
    scores["recall_read"] = (by_words & read).any(axis=1).astype(float)
  scores |= retrieval_scores(by_words)
  return scores | retrieval_scores(by_characters, by="_characters")


def _answer_scores(lines: Sequence[Line]) -> Scores:
  f1 = [np.nan if line["f1"] is None else line["f1"] for line in lines]
  oracle = [any(a["correct"] for a in line["answers"]) for line in lines]
  scores = {
    "exact_match": np.array([line["correct"] for line in lines], float),
    "f1": np.array(f1, float),
    "exact_match_oracle": np.array(oracle, float),
  }
  if np.isnan(f1).all():
    del scores["f1"]
  return scores


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


def means(scores: Scores) -> dict[str, float]:
  """Returns the mean of each score over the questions that have it."""
  return {name: float(np.nanmean(values)) for name, values in scores.items()}


def num_bad_patterns(lines: Sequence[Line]) -> int | None:
  """Returns how many patterns cannot be compiled, and so match nothing.

  None where no question has patterns.
  """
  patterns = [
    pattern
    for line in lines
    if line["answer_kind"] == "regex"
    for pattern in line["references"]
  ]
  return len(answers.bad_patterns(patterns)) if patterns else None
