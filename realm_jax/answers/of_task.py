"""The answers of a task's questions, all of them and those of a batch."""

from collections.abc import Iterator

import numpy as np

from realm_jax.answers.distinct import DistinctAnswers, QuestionAnswers
from realm_jax.inputs.batches import Batch
from realm_jax.inputs.config import DataConfig
from realm_jax.inputs.examples import ExampleStream
from realm_jax.text.answers import AnswerKind


def answers_of_task(data: DataConfig, rule: str) -> DistinctAnswers:
  """Reads one epoch of a task's questions, and returns their answers.

  Raises:
    TaskError: There is no such task, or its source cannot be read.
  """
  return DistinctAnswers.of(rule, _questions(data))


def answers_of_batch(batch: Batch) -> list[QuestionAnswers]:
  """Returns the answers of each question; strings where no kind is given."""
  kinds = ["string"] * len(batch.positions)
  if "answer_kind" in batch.host:
    kinds = batch.texts("answer_kind")
  rows = zip(kinds, batch.answers, batch.answer_tokens, strict=True)
  return [
    QuestionAnswers(_kind(kind), texts, tokens) for kind, texts, tokens in rows
  ]


def _questions(data: DataConfig) -> Iterator[QuestionAnswers]:
  for example in ExampleStream(data, shuffle=False, repeat=False):
    texts = [text.decode() for text in np.asarray(example["answers"]).tolist()]
    padded = np.asarray(example["answer_tokens"])
    tokens = [tuple(row[row != 0].tolist()) for row in padded]
    kind = np.asarray(example.get("answer_kind", b"string")).item()
    yield QuestionAnswers(_kind(kind.decode()), texts, tokens)


def _kind(name: str) -> AnswerKind:
  return "regex" if name == "regex" else "string"
