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
from realm_jax.evaluation.ranking import Ranking
from realm_jax.evaluation.trained_model import whole_batch
from realm_jax.inputs.batches import BatchStream
from realm_jax.inputs.config import DataConfig
from realm_jax.text import answers


class Question(NamedTuple):
  """A question and its accepted answers."""

  text: str
  question_id: str
  references: list[str]


class QuestionBatch(NamedTuple):
  """Questions and their token ids; rows past the last question are padding."""

  token_ids: Int32[np.ndarray, "b q"]
  questions: list[Question]


@dataclasses.dataclass(frozen=True)
class Evidence:
  """One block retrieved for a question, as output files show it.

  Attributes:
    block: Name of the block.
    title: Title of its document.
    probability: p(z|x) over the retrieved blocks.
    score: Score of the block.
    contains_answer: Whether its body contains an accepted answer.
    read: Whether the reader has read it.
  """

  block: str
  title: str
  probability: float
  score: float
  contains_answer: bool
  read: bool


@contextlib.contextmanager
def open_questions(
  data: DataConfig, *, max_examples: int | None = None
) -> Iterator[Iterator[QuestionBatch]]:
  """Yields batches of questions in the order of their file.

  A malformed file is reported when the block is entered, so open it before
  anything large is loaded.

  Args:
    data: Open-QA task. The batch size is rounded up to a multiple of the
      devices.
    max_examples: Maximum number of questions; None takes all.
  """
  stream = BatchStream(
    dataclasses.replace(data, batch_size=whole_batch(data.batch_size)),
    shuffle=False,
    repeat=False,
  )
  with contextlib.closing(stream):
    yield _question_batches(stream, max_examples=max_examples)


def _question_batches(
  stream: BatchStream, *, max_examples: int | None
) -> Iterator[QuestionBatch]:
  remaining = sys.maxsize if max_examples is None else max_examples
  with Progress("questions") as progress:
    for batch in stream:
      if remaining <= 0:
        break
      rows = zip(
        batch.texts("question"),
        batch.texts("question_id"),
        batch.answers,
        strict=True,
      )
      questions = [
        Question(*row)
        for row, is_real in zip(rows, batch.is_real, strict=True)
        if is_real
      ][:remaining]
      remaining -= len(questions)
      yield QuestionBatch(batch.arrays["query"], questions)
      progress.advance(len(questions))


def evidence_of(
  corpus: Corpus,
  ranking: Ranking,
  references: Sequence[str],
  *,
  kind: answers.AnswerKind,
  num_read: int = 0,
) -> list[Evidence]:
  """Describes the blocks retrieved for one question, best first.

  Args:
    corpus: Corpus of the blocks.
    ranking: Blocks of the question, as arrays [k].
    references: Accepted answers of the question.
    kind: Whether references are strings or regular expressions.
    num_read: Number of blocks that the reader has read.
  """
  return [
    Evidence(
      block=corpus.block_name(row),
      title=corpus.title(row),
      probability=round(probability, 6),
      score=round(score, 6),
      contains_answer=answers.contains_answer(
        corpus.body(row), references, kind=kind
      ),
      read=rank < num_read,
    )
    for rank, (row, score, probability) in enumerate(
      zip(*(part.tolist() for part in ranking), strict=True)
    )
  ]
