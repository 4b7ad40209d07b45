"""Questions in batches of one shape, and the blocks retrieved for them."""

import contextlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int32

from realm_jax.console.progress import Progress
from realm_jax.corpus.store import Corpus
from realm_jax.evaluation.outputs import Figures, Line
from realm_jax.evaluation.ranking import Ranking
from realm_jax.evaluation.shares import Share
from realm_jax.inputs.batches import Batch
from realm_jax.inputs.config import DataConfig
from realm_jax.text import answers


class Question(NamedTuple):
  """A question, its accepted answers, and its position in the file."""

  id: str
  text: str
  references: list[str]
  position: int


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
      questions = [
        Question(ids[i], texts[i], batch.answers[i], int(batch.positions[i]))
        for i in order[:size]
      ]
      yield batch.arrays["query"][order], questions
      progress.advance(size)


def evidence_of(
  corpus: Corpus,
  ranking: Ranking,
  references: Sequence[str],
  *,
  kind: answers.AnswerKind,
  num_read: int = 0,
) -> list[Figures]:
  """Describes the blocks retrieved for one question, best first, as JSON.

  The ranking holds arrays [k]. References are strings or regular expressions,
  by their `kind`. The reader has read the best `num_read` blocks.
  """
  return [
    {
      "block": corpus.block_name(row),
      "title": corpus.title(row),
      "probability": round(probability, 6),
      "score": round(score, 6),
      "contains_answer": answers.contains_answer(
        corpus.body(row), references, kind=kind
      ),
      "read": rank < num_read,
    }
    for rank, (row, score, probability) in enumerate(
      zip(*(part.tolist() for part in ranking), strict=True)
    )
  ]


def contains_answer(lines: Iterable[Line]) -> Bool[np.ndarray, "n k"]:
  """Returns which blocks of each line's `evidence` contain an answer."""
  return np.array(
    [[block["contains_answer"] for block in line["evidence"]] for line in lines]
  )
