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

_RECALL_DEPTHS = (1, 5, 20)


def answer_metrics(
  predictions: Sequence[str],
  references: Sequence[Sequence[str]],
  *,
  kind: answers.AnswerKind = "string",
) -> dict[str, float]:
  """Scores the predicted answers of at least one question.

  Args:
    predictions: Answer to each question, as its block spells it.
    references: Accepted answers of each question, of which the best counts.
    kind: Whether references are strings or regular expressions.

  Returns:
    `exact_match` and, for strings, `f1` (SQuAD's, over words), which are means
    over the questions, in [0, 1]. For regular expressions, `bad_patterns` is
    the number of references that could not be compiled and matched nothing.
  """
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


def retrieval_metrics(contains: Bool[np.ndarray, "n k"]) -> dict[str, float]:
  """Scores the k blocks retrieved for each of n questions.

  The reciprocal rank of a question is 1 / rank of the first block that
  contains an answer, and 0 if none does, as in TREC's evaluation (Voorhees
  1999). So its mean is MRR@k, which grows with k.

  Args:
    contains: Whether each retrieved block, best first, contains an answer
      (`text.answers.contains_answer`).

  Returns:
    `recall_at_1`, `recall_at_5` and `recall_at_20`, but for those above k: the
    share of questions with an answer in so many blocks; and `mrr`. All are in
    [0, 1].
  """
  metrics = {
    f"recall_at_{depth}": float(contains[:, :depth].any(axis=1).mean())
    for depth in _RECALL_DEPTHS
    if depth <= contains.shape[1]
  }
  reciprocal_ranks = np.where(
    contains.any(axis=1), 1.0 / (1.0 + contains.argmax(axis=1)), 0.0
  )
  return metrics | {"mrr": float(reciprocal_ranks.mean())}
