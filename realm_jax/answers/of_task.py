"""The answers of a task's questions, all of them and those of a batch."""

import dataclasses
from collections.abc import Iterator
from typing import cast

import numpy as np
import seqio

from realm_jax.answers.distinct import DistinctAnswers, QuestionAnswers
from realm_jax.inputs.batches import Batch
from realm_jax.inputs.config import DataConfig
from realm_jax.inputs.examples import ExampleStream
from realm_jax.inputs.registry import find_task
from realm_jax.text.answers import AnswerKind


def answers_of_task(data: DataConfig, rule: str) -> DistinctAnswers:
  """Reads all questions of a task or mixture, and returns their answers.

  Raises:
    TaskError: There is no such task, or its source cannot be read.
  """
  questions = (
    question
    for task in seqio.get_subtasks(find_task(data.task, data.task_modules))
    for question in _questions(dataclasses.replace(data, task=task.name))
  )
  return DistinctAnswers.of(rule, questions)


def answers_of_batch(batch: Batch) -> list[QuestionAnswers]:
  """Returns the answers of each question."""
  rows = zip(
    batch.answer_kinds, batch.answers, batch.answer_tokens, strict=True
  )
  return [QuestionAnswers(*row) for row in rows]


def _questions(data: DataConfig) -> Iterator[QuestionAnswers]:
  for example in ExampleStream(data, shuffle=False, repeat=False):
    texts = [text.decode() for text in np.asarray(example["answers"]).tolist()]
    padded = np.asarray(example["answer_tokens"])
    tokens = [tuple(row[row != 0].tolist()) for row in padded]
    kind = np.asarray(example["answer_kind"]).item().decode()
    yield QuestionAnswers(cast(AnswerKind, kind), texts, tokens)
