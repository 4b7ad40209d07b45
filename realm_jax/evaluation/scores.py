"""Scores of questions, their means, confidence intervals and p-values.

The questions of a test set are a sample; another sample would give other means.
The bootstrap intervals and the paired randomization test are seeded, so that
they are reproducible. Both accept several sets of questions, such as one for
each seed of a run. The sets may have different sizes: each is resampled
separately, and all have the same weight.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from realm_jax.console import name_value_table

PREDICTIONS, RETRIEVED = "predictions.jsonl", "retrieved.jsonl"
# A line of such a file.
Line = dict[str, Any]
# Scores by name: one or several values for each question, or NaN.
Scores = Mapping[str, Float[np.ndarray, "_ ..."]]
_RECALL_DEPTHS = (1, 5, 20, 100)
# Number of documents that are retrieved for a judged query.
NUM_DOCUMENTS = 100
INTERVALS = "intervals"
# Field of a line: scores of its blocks before reranking.
_FIRST = "before_reranking"
_LEVEL = 0.95
_NUM_PERMUTATIONS = 10_000
_TOP = 10
# Number of random values that are drawn at once.
_CHUNK = 1 << 22


def question_scores(lines: Sequence[Line]) -> Scores:
  """Scores each question; docs/evaluation.md defines the scores.

  `f1` is absent where all answers are patterns. `line_scores` has the rest.
  """
  return joined([line_scores(lines)])


def joined(parts: Sequence[Scores]) -> Scores:
  """Concatenates the `line_scores` of parts; drops scores that are all NaN."""
  scores = {
    name: np.concatenate([part[name] for part in parts]) for name in parts[0]
  }
  return {
    n: values for n, values in scores.items() if not np.isnan(values).all()
  }


def line_scores(lines: Sequence[Line]) -> Scores:
  """Scores lines independently of each other.

  `f1` is NaN if the answers are patterns. Lines without predictions have only
  scores of retrieval, and queries with graded documents have the scores of
  `document_scores`. Lines `with_first_order` also have the scores of that
  order, named `…_before_reranking`.
  """
  scores = dict(_of_order(lines))
  if _FIRST in lines[0]:
    for name in lines[0][_FIRST]:
      values = np.array([line[_FIRST][name] for line in lines])
      scores[f"{name}_before_reranking"] = values
  return scores


def with_first_order(line: Line, evidence: Sequence[Any]) -> Line:
  """Adds the scores of the retriever's order to a line."""
  scores = _of_order([{**line, "evidence": evidence}])
  values = {name: float(value) for name, (value,) in scores.items()}
  return {**line, _FIRST: values}


def _of_order(lines: Sequence[Line]) -> Scores:
  if isinstance(lines[0]["references"], Mapping):
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
    if "rouge_l" in lines[0]:
      scores["rouge_l"] = np.array([line["rouge_l"] for line in lines], float)
  return {
    **scores,
    **_path_scores(lines),
    **_retrieval_scores(by_words, ""),
    **_retrieval_scores(by_characters, "_characters"),
  }


def _path_scores(lines: Sequence[Line]) -> Scores:
  """Scores paths of blocks by the documents that a question needs, its `gold`.

  A path is right if it has all of them. `joint_exact_match` requires a right
  answer from a right path. Questions without `gold` have NaN.
  """
  scores: dict[str, list[float]] = {}
  for line in lines:
    gold, evidence = {*line.get("gold", ())}, line["evidence"]
    is_right = [gold <= {*one.get("documents", ())} for one in evidence]
    for depth in _RECALL_DEPTHS[:2]:
      value = float(any(is_right[:depth])) if gold else np.nan
      scores.setdefault(f"path_recall_at_{depth}", []).append(value)
    if "prediction" in line:
      block = (line.get("answer") or {}).get("block")
      of_answer = [
        right
        for one, right in zip(evidence, is_right, strict=True)
        if block is not None and one["block"] == block
      ]
      value = float(line["correct"] and any(of_answer)) if gold else np.nan
      scores.setdefault("joint_exact_match", []).append(value)
  return {name: np.array(values) for name, values in scores.items()}


def _retrieval_scores(contains: Bool[np.ndarray, "n k"], suffix: str) -> Scores:
  """Scores blocks, best first, by whether each contains an answer.

  The reciprocal rank of a question is 1 / rank of the first block that
  contains an answer, and 0 if none does, as in TREC's evaluation (Voorhees
  1999). So its mean is MRR@k, which grows with k.
  """
  scores = {
    f"recall{suffix}_at_{depth}": contains[:, :depth].any(axis=1).astype(float)
    for depth in _RECALL_DEPTHS
    if depth <= contains.shape[1]
  }
  ranks = 1.0 + contains.argmax(axis=1)
  reciprocal = np.where(contains.any(axis=1), 1.0 / ranks, 0.0)
  return scores | {f"mrr{suffix}": reciprocal}


def document_scores(lines: Sequence[Line]) -> Scores:
  """Scores the documents retrieved for judged queries, as trec_eval does.

  A document without a grade, or with one of 0 or less, is not relevant. A query
  without relevant documents scores 0. Each line has the first `NUM_DOCUMENTS`
  of a query, best first.

  Returns:
    `ndcg_at_10`: Σ grade / log₂(1 + rank) of the first 10 documents, divided by
    the sum for the best order of all judged documents (Järvelin & Kekäläinen
    2002, with the grades as gains).
    `recall_at_100`: the share of the relevant documents among the first 100.
    `mrr_at_10`: 1 / rank of the first relevant document, or 0 if it is not
    among the first 10.
  """
  names = "ndcg_at_10", "recall_at_100", "mrr_at_10"
  scores = {name: np.zeros(len(lines)) for name in names}
  for i, line in enumerate(lines):
    relevant = np.array([g for g in line["references"].values() if g > 0])
    retrieved = np.array([document["grade"] for document in line["evidence"]])
    ranks = 1 + np.flatnonzero(retrieved > 0)
    if len(ranks):
      best = _gain(-np.sort(-relevant))
      scores["ndcg_at_10"][i] = _gain(np.maximum(retrieved, 0)) / best
      scores["recall_at_100"][i] = len(ranks) / len(relevant)
      scores["mrr_at_10"][i] = 1.0 / ranks[0] if ranks[0] <= _TOP else 0.0
  return scores


def _gain(grades: Int[np.ndarray, " n"]) -> float:
  """Returns the discounted gain of the first 10 documents."""
  top = grades[:_TOP]
  return float(np.sum(top / np.log2(2.0 + np.arange(len(top)))))


def means(scores: Scores) -> dict[str, float]:
  """Returns the mean of each score over the questions that have it."""
  return {name: float(np.nanmean(values)) for name, values in scores.items()}


def summarize(scores: Scores) -> dict[str, Any]:
  """Returns the means of `question_scores`, `num_questions` and `intervals`.

  These are the 95 % bootstrap intervals of the means.
  """
  return means(scores) | {
    "num_questions": len(next(iter(scores.values()))),
    INTERVALS: bootstrap_intervals(scores),
  }


def summary_table(metrics: Mapping[str, Any]) -> str:
  """Returns a line for each metric, with its interval."""
  shown = {name: v for name, v in metrics.items() if name != INTERVALS}
  for name, (low, high) in metrics.get(INTERVALS, {}).items():
    shown[name] = f"{shown[name]:.4f}  [{low:.4f}, {high:.4f}]"
  return name_value_table(shown)


def bootstrap_intervals(
  *sets: Scores, num_resamples: int = 1000, seed: int = 0
) -> dict[str, list[float]]:
  """Returns percentile intervals of the mean of the sets' means (Efron 1979).

  Each resample draws n of the n questions of a set with replacement, the same
  ones for all scores. A score's interval lies between the 2.5 % and 97.5 %
  quantiles of its means.
  """
  rng = np.random.default_rng(seed)
  means = np.mean([_resampled(s, num_resamples, rng) for s in sets], axis=0)
  tails = [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2]
  low, high = np.quantile(means, tails, axis=0).tolist()
  return {name: [low[i], high[i]] for i, name in enumerate(sets[0])}


def _resampled(
  scores: Scores, num_resamples: int, rng: np.random.Generator
) -> Float[np.ndarray, "r m"]:
  """Returns the means of all scores in each resample."""
  values = np.stack(list(scores.values()), axis=1)
  present = ~np.isnan(values)
  values = np.where(present, values, 0.0)
  number, parts = len(values), []
  for size in _chunks(num_resamples, number):
    drawn = rng.integers(0, number, (size, number))
    drawn += np.arange(size)[:, None] * number
    counts = np.bincount(drawn.ravel(), minlength=size * number)
    counts = counts.reshape(size, number).astype(float)
    weights = np.maximum(counts @ present.astype(float), 1.0)
    parts.append(counts @ values / weights)
  return np.concatenate(parts)


def permutation_p_values(
  *differences: Scores, seed: int = 0
) -> dict[str, float]:
  """Returns two-sided p-values of a paired randomization test (Fisher 1935).

  If two systems are the same, each question's difference could as well have
  the other sign. The p-value is the share of random signs, including the true
  ones, for which the sum is at least as far from 0 as the true sum. The test
  compares the two trained systems; it does not account for the variation
  between seeds of training.

  `differences` has the differences of two systems' scores, for each set of
  questions.
  """
  columns = [
    np.concatenate([np.nan_to_num(s[name]) / len(s[name]) for s in differences])
    for name in differences[0]
  ]
  values = np.stack(columns, axis=1)
  rng = np.random.default_rng(seed)
  # A tolerance, because sums in another order differ in their last digits.
  limits = np.abs(values.sum(axis=0)) - 1e-9
  as_far = np.zeros(values.shape[1])
  for size in _chunks(_NUM_PERMUTATIONS, len(values)):
    signs = rng.integers(0, 2, (size, len(values)), np.int8) * 2.0 - 1.0
    as_far += (np.abs(signs @ values) >= limits).sum(axis=0)
  shares = (1 + as_far) / (1 + _NUM_PERMUTATIONS)
  return dict(zip(differences[0], shares.tolist(), strict=True))


def _chunks(total: int, num_questions: int) -> Iterator[int]:
  """Yields numbers of resamples that sum to `total` and fit into memory."""
  size = max(_CHUNK // num_questions, 1)
  for start in range(0, total, size):
    yield min(size, total - start)
