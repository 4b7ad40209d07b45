"""Questions in batches of one shape, and the blocks retrieved for them."""

import contextlib
import sys
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

from realm_jax.console import Progress
from realm_jax.corpus.store import Corpus
from realm_jax.evaluation.outputs import Figures, Line
from realm_jax.evaluation.ranking import Ranking
from realm_jax.evaluation.shares import Share
from realm_jax.inputs.batch import Batch
from realm_jax.inputs.config import DataConfig
from realm_jax.text import answers


class Question(NamedTuple):
  """A question, its accepted answers, and its position in the file.

  The references are strings or patterns, as the task says.
  """

  id: str
  text: str
  references: list[str]
  answer_kind: answers.AnswerKind
  position: int

  def line(self) -> Line:
    """Returns the fields with which a question's line of a file begins."""
    return {
      "id": self.id,
      "question": self.text,
      "references": self.references,
      "answer_kind": self.answer_kind,
    }


# Token ids, whose rows past the last question are padding, and the questions.
QuestionBatch = tuple[Int32[np.ndarray, "b q"], list[Question]]


@contextlib.contextmanager
def open_questions(
  data: DataConfig, *, share: Share, max_examples: int | None = None
) -> Iterator[Iterator[QuestionBatch]]:
  """Yields batches of this process's questions, in the order of their file.

  Of all questions it takes those at the first `max_examples` positions. If the
  task drops questions, those after them move up in their rows, and some batches
  have a question before an earlier one; its position tells.

  A malformed file is reported when the block is entered, so open it before
  anything large is loaded.

  The batch size of the open-QA task is rounded up to a multiple of the devices.

  Raises:
    ValueError: The file cannot be read, or max_examples is not positive.
  """
  if max_examples is not None and max_examples < 1:
    raise ValueError(f"max_examples={max_examples}; want at least 1")
  with share.batches(data, shuffle=False, repeat=False) as batches:
    yield _question_batches(batches, max_examples or sys.maxsize)


def _question_batches(
  batches: Iterator[Batch], max_examples: int
) -> Iterator[QuestionBatch]:
  with Progress("questions") as progress:
    for batch in batches:
      is_taken = batch.is_real & (batch.positions < max_examples)
      size = int(is_taken.sum())
      # The positions of a row rise, so no later batch has a question, either.
      if not size:
        return
      # Rows without a question follow those that have one.
      order = np.argsort(~is_taken, stable=True)
      ids, texts = batch.texts("question_id"), batch.texts("question")
      kinds = batch.answer_kinds
      questions = [
        Question(
          ids[i], texts[i], batch.answers[i], kinds[i], int(batch.positions[i])
        )
        for i in order[:size]
      ]
      yield batch.arrays["query"][order], questions
      progress.advance(size)


def evidence_of(
  corpus: Corpus,
  ranking: Ranking,
  question: Question,
) -> list[Figures]:
  """Describes the blocks retrieved for one question, best first, as JSON.

  `contains_answer` is by words, and `contains_characters` as in Google's
  released ORQA. A pattern is searched for both in the same way.

  Args:
    corpus: Corpus that was searched.
    ranking: Retrieved blocks, as arrays [k].
    question: Question with its references.
  """
  evidence: list[Figures] = []
  for row, score, probability in zip(
    *(part.tolist() for part in ranking), strict=True
  ):
    block, references = corpus.block(row), question.references
    body = block.body
    has_words = has_characters = answers.contains_answer(
      body, references, kind=question.answer_kind
    )
    if question.answer_kind == "string":
      has_characters = answers.contains_characters(body.encode(), references)
    evidence.append(
      {
        "block": block.name,
        "title": block.title,
        "probability": round(probability, 6),
        "score": round(score, 6),
        "contains_answer": has_words,
        "contains_characters": has_characters,
      }
    )
  return evidence
