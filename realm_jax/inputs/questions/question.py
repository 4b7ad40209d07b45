"""Questions with their answers, and what is common to all their sources."""

import abc
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from jaxtyping import Int

from realm_jax.inputs.config import TaskError
from realm_jax.inputs.features import wordpieces
from realm_jax.inputs.questions.checks import QuestionChecks
from realm_jax.inputs.sources import Column, RandomAccessSource
from realm_jax.text.answers import AnswerKind


class QuestionFileError(TaskError):
  """Questions that cannot be read; the message says where and why."""


class Question(NamedTuple):
  """A question, its alternative answers, and its id if it has one."""

  question: str
  answers: Sequence[str]
  question_id: str = ""


class QuestionRecords(abc.ABC):
  """The questions of one split.

  Args:
    checks: Checks that have seen each of the questions, in their order.
  """

  spec: Mapping[str, tf.TensorSpec] = {
    "question": tf.TensorSpec((), tf.string),
    "answers": tf.TensorSpec((None,), tf.string),
    "question_id": tf.TensorSpec((), tf.string),
  }

  def __init__(self, checks: QuestionChecks):
    self._checks = checks

  @abc.abstractmethod
  def __len__(self) -> int: ...

  @abc.abstractmethod
  def questions(self, indices: Sequence[int]) -> list[Question]:
    """Returns questions by their number."""

  def lookup(self, indices: Int[np.ndarray, " n"]) -> Mapping[str, Column]:
    """Reads questions by their number."""
    questions = self.questions(indices.tolist())
    return {
      "question": [q.question.encode() for q in questions],
      "answers": [
        np.array([answer.encode() for answer in q.answers], object)
        for q in questions
      ],
      "question_id": [q.question_id.encode() for q in questions],
    }

  def problems(self, lengths: Mapping[str, int]) -> Sequence[str]:
    """Describes questions that will not be trained on or scored as they stand.

    Each kind of problem is counted, and the first questions that have it are
    named.
    """
    num_words = lengths["query"] - 2
    longest = self._checks.may_be_longer_than(num_words)
    found = self._checks.problems()
    if longest:
      questions = self.questions(longest)
      texts = tf.constant([question.question for question in questions])
      tokens = wordpieces().encode_tf(texts)
      sizes = tokens.row_lengths().numpy().tolist()
      found.extend(
        self._checks.cut_questions(
          {
            question.question_id: size
            for question, size in zip(questions, sizes, strict=True)
            if size > num_words
          },
          num_words,
        )
      )
    return found


class QuestionSource(RandomAccessSource):
  """A source of questions.

  Attributes:
    answer_kind: Whether the answers are strings or regular expressions.
  """

  def __init__(
    self, *, splits: Sequence[str] = (), answer_kind: AnswerKind = "string"
  ):
    super().__init__(splits=splits, caching_permitted=False)
    self.answer_kind: AnswerKind = answer_kind

  @abc.abstractmethod
  def open(self, split: str) -> QuestionRecords:
    """Opens the questions of a split; called inside the task context."""
