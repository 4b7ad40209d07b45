"""Metrics of open-domain question answering.

Published exact match on test sets, in percent (Guu et al. 2020, arXiv
2002.08909, Table 1; the last row is the released checkpoint, evaluated again
with exact search):

| system                    |   NQ  |   WQ  |  CT  |
| ORQA (Lee et al. 2019)    | 33.3  | 36.4  | 30.1 |
| REALM, X = Wikipedia      | 39.2  | 40.2  | 46.8 |
| REALM, X = CC-News        | 40.4  | 40.7  | 42.9 |
| released REALM checkpoint | 40.42 | 41.68 |      |

Zero-shot recall@5 of the retriever on NQ's development set (Table 2): 38.5
after REALM pre-training, 13.9 after inverse cloze alone.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool

from realm_jax.text import answers

RECALL_DEPTHS = (1, 5, 20)


def answer_metrics(
  predictions: Sequence[str],
  references: Sequence[Sequence[str]],
  *,
  kind: answers.AnswerKind = "string",
) -> dict[str, float]:
  """Scores predicted answers, each against the best of its references.

  Args:
    predictions: Answer to each question, as its block spells it.
    references: Accepted answers of each question.
    kind: Whether references are strings or regular expressions.

  Returns:
    `exact_match` and, for strings, `f1` (SQuAD's, over words), which are means
    over the questions, in [0, 1]. For regular expressions, `bad_patterns` is
    the number of references that could not be compiled and matched nothing.

  Raises:
    ValueError: There are no questions, or not one prediction for each.
  """
  if len(predictions) != len(references) or not references:
    raise ValueError(
      f"{len(predictions)} predictions for {len(references)} questions; one "
      "prediction for each of at least one question is needed"
    )
  pairs = list(zip(predictions, references, strict=True))
  correct = [answers.is_correct(p, r, kind=kind) for p, r in pairs]
  metrics = {"exact_match": float(np.mean(correct))}
  if kind == "regex":
    patterns = (pattern for group in references for pattern in group)
    metrics["bad_patterns"] = float(len(answers.bad_patterns(patterns)))
  else:
    scores = [answers.best_token_f1(p, r) for p, r in pairs]
    metrics["f1"] = float(np.mean(scores))
  return metrics


def recall_at(contains: Bool[np.ndarray, "n k"], depth: int) -> float:
  """Returns the share of questions with an answer in the best `depth` blocks.

  Args:
    contains: Whether each retrieved block, best first, contains an answer.
    depth: Number of blocks that count.

  Raises:
    ValueError: Fewer than `depth` blocks were retrieved, or there are no
      questions.
  """
  num_questions, num_retrieved = contains.shape
  if not 1 <= depth <= num_retrieved or not num_questions:
    raise ValueError(
      f"recall@{depth} of {num_questions} questions with {num_retrieved} "
      "retrieved blocks each; retrieve at least as many as are counted"
    )
  return float(contains[:, :depth].any(axis=1).mean())


def mean_reciprocal_rank(contains: Bool[np.ndarray, "n k"]) -> float:
  """Returns the mean of 1 / rank of the first block that contains an answer.

  A question without such a block among the retrieved ones contributes 0, as in
  TREC's evaluation (Voorhees 1999). So this is MRR@k, which grows with k.
  """
  reciprocal_ranks = np.where(
    contains.any(axis=1), 1.0 / (1.0 + contains.argmax(axis=1)), 0.0
  )
  return float(reciprocal_ranks.mean())


def retrieval_metrics(
  contains: Bool[np.ndarray, "n k"],
  *,
  depths: Sequence[int] = RECALL_DEPTHS,
) -> dict[str, float]:
  """Returns recall at each depth that was retrieved, and the reciprocal rank.

  Args:
    contains: Whether each retrieved block, best first, contains an answer
      (`text.answers.contains_answer`).
    depths: Values of k of recall@k. Those above the number of retrieved blocks
      are left out.

  Returns:
    `recall_at_<k>` for each k, and `mrr`, all in [0, 1].
  """
  num_retrieved = contains.shape[1]
  metrics = {
    f"recall_at_{depth}": recall_at(contains, depth)
    for depth in depths
    if depth <= num_retrieved
  }
  return metrics | {"mrr": mean_reciprocal_rank(contains)}
