"""The answers of all questions of a task."""

import contextlib
import dataclasses
from collections.abc import Iterator

import seqio

from realm_jax.answers.distinct import (
  DistinctAnswers,
  QuestionAnswers,
  answers_of_batch,
)
from realm_jax.inputs.batches import BatchStream
from realm_jax.inputs.config import DataConfig
from realm_jax.inputs.examples import find_task

# Batches hide the cost of a call for each question.
_QUESTIONS_PER_BATCH = 64


def answers_of_task(data: DataConfig) -> DistinctAnswers:
  """Reads all questions of a task or mixture, and returns their answers.

  Raises:
    TaskError: There is no such task, or its source cannot be read.
  """
  return DistinctAnswers.of(_questions(data))


def _questions(data: DataConfig) -> Iterator[QuestionAnswers]:
  # An epoch of a mixture ends with the first of its tasks.
  for task in seqio.get_subtasks(find_task(data.task, data.task_modules)):
    own = dataclasses.replace(
      data, task=task.name, batch_size=_QUESTIONS_PER_BATCH
    )
    stream = BatchStream(own, shuffle=False, repeat=False)
    with contextlib.closing(stream):
      for batch in stream:
        yield from answers_of_batch(batch)
