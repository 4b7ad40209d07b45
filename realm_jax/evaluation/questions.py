"""Questions in batches of one shape, and the blocks retrieved for them."""

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

from realm_jax.console.progress import Progress
from realm_jax.corpus.store import Corpus
from realm_jax.evaluation.outputs import Figures
from realm_jax.evaluation.ranking import Ranking
from realm_jax.evaluation.trained_model import whole_batch
from realm_jax.inputs.batches import BatchStream
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
  data: DataConfig, *, max_examples: int | None = None
) -> Iterator[Iterator[QuestionBatch]]:
  """Yields batches of questions, in the order of their file.

  If the task drops questions, those after them move up in their rows, and some
  batches have a question before an earlier one; its position tells.

  A malformed file is reported when the block is entered, so open it before
  anything large is loaded.

  The batch size of the open-QA task is rounded up to a multiple of the devices.

  Raises:
    ValueError: There are no questions.
  """
  if max_examples is not None and max_examples < 1:
    raise ValueError(f"max_examples={max_examples}; want at least 1")
  stream = BatchStream(
    dataclasses.replace(data, batch_size=whole_batch(data.batch_size)),
    shuffle=False,
    repeat=False,
  )
  with contextlib.closing(stream):
    yield _question_batches(stream, max_examples or sys.maxsize)


def _question_batches(
  stream: BatchStream, max_examples: int
) -> Iterator[QuestionBatch]:
  count = 0
  with Progress("questions") as progress:
    for batch in stream:
      size = min(int(batch.is_real.sum()), max_examples - count)
      # Rows without a question follow those that have one.
      order = np.argsort(~batch.is_real, stable=True)
      ids, texts = batch.texts("question_id"), batch.texts("question")
      questions = [
        Question(ids[i], texts[i], batch.answers[i], int(batch.positions[i]))
        for i in order[:size]
      ]
      yield batch.arrays["query"][order], questions
      progress.advance(size)
      count += size
      if count == max_examples:
        break
  if not count:
    raise ValueError("the task gives no questions")


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
