"""Questions in batches of one shape, and what a retrieved block is to them."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32

from realm_jax.console.progress import Progress
from realm_jax.corpus.store import Corpus
from realm_jax.evaluation.ranking import Ranking
from realm_jax.inputs.batches import Batch
from realm_jax.text import answers


class Question(NamedTuple):
  """A question as it was asked."""

  text: str
  question_id: str
  references: list[str]


class QuestionBatch(NamedTuple):
  """Questions and their tokens; rows past the last question only fill up."""

  token_ids: Int32[np.ndarray, "b q"]
  questions: list[Question]


def question_batches(
  batches: Iterable[Batch], *, max_examples: int | None = None
) -> Iterator[QuestionBatch]:
  """Takes from a task's batches the questions that are there.

  Args:
    batches: of one epoch of an open-QA task.
    max_examples: stop after so many questions.
  """
  left = sys.maxsize if max_examples is None else max_examples
  with Progress("questions") as progress:
    for batch in batches:
      if left <= 0:
        break
      asked = zip(
        batch.texts("question"),
        batch.texts("question_id"),
        batch.answers,
        strict=True,
      )
      real = [
        Question(*question)
        for question, is_real in zip(asked, batch.is_real, strict=True)
        if is_real
      ][:left]
      left -= len(real)
      yield QuestionBatch(batch.arrays["query"], real)
      progress.advance(len(real))


def evidence_of(
  corpus: Corpus,
  ranking: Ranking,
  references: Sequence[str],
  *,
  kind: answers.AnswerKind,
  num_read: int = 0,
) -> list[dict[str, Any]]:
  """The blocks found for one question, best first, as JSON shows them.

  Args:
    corpus: whose blocks they are.
    ranking: of the one question, as arrays [k].
    references: its answers.
    kind: of the references.
    num_read: how many of the blocks the reader has read.
  """
  return [
    {
      "block": corpus.block_name(row),
      "title": corpus.title(row),
      "probability": round(float(probability), 6),
      "score": round(float(score), 6),
      "contains_answer": answers.contains_answer(
        corpus.body(row), references, kind=kind
      ),
      "read": rank < num_read,
    }
    for rank, (row, score, probability) in enumerate(
      zip(
        ranking.rows.tolist(),
        ranking.scores,
        ranking.probabilities,
        strict=True,
      )
    )
  ]
