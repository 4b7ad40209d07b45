"""The answers of a task's questions, all of them and those of a batch."""

import contextlib
import dataclasses
import itertools

from realm_jax.answers.distinct import DistinctAnswers, QuestionAnswers
from realm_jax.inputs.batches import Batch, BatchStream
from realm_jax.inputs.config import DataConfig
from realm_jax.text.answers import AnswerKind

# Batches hide the cost of a call for each question.
_QUESTIONS_PER_BATCH = 64


def answers_of_task(data: DataConfig, rule: str) -> DistinctAnswers:
  """Reads one epoch of a task's questions, and returns their answers.

  Raises:
    TaskError: There is no such task, or its source cannot be read.
  """
  data = dataclasses.replace(data, batch_size=_QUESTIONS_PER_BATCH)
  stream = BatchStream(data, shuffle=False, repeat=False)
  with contextlib.closing(stream):
    questions = itertools.chain.from_iterable(map(answers_of_batch, stream))
    return DistinctAnswers.of(rule, questions)


def answers_of_batch(batch: Batch) -> list[QuestionAnswers]:
  """Returns the answers of each question; strings where no kind is given."""
  kinds = ["string"] * len(batch.positions)
  if "answer_kind" in batch.host:
    kinds = batch.texts("answer_kind")
  rows = zip(kinds, batch.answers, batch.answer_tokens, strict=True)
  return [
    QuestionAnswers(_kind(kind), texts, tokens) for kind, texts, tokens in rows
  ]


def _kind(name: str) -> AnswerKind:
  return "regex" if name == "regex" else "string"
