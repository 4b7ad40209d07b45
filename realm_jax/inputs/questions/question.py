"""Questions with their answers, and what is common to all their sources."""

import abc
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from jaxtyping import Int

from realm_jax.inputs.config import TaskError
from realm_jax.inputs.features import wordpieces
from realm_jax.inputs.sources import RandomAccessSource
from realm_jax.text.answers import AnswerKind, bad_patterns

_MAX_LISTED = 5


class QuestionFileError(TaskError):
  """Questions that cannot be read; the message says where and why."""


class Question(NamedTuple):
  """A question, its alternative answers, and its id if it has one."""

  question: str
  answers: Sequence[str]
  question_id: str = ""


def listed(items: Sequence[str]) -> str:
  """Joins the first few items, and says how many there are besides."""
  text = "; ".join(items[:_MAX_LISTED])
  rest = len(items) - _MAX_LISTED
  return f"{text}; and {rest:,} more" if rest > 0 else text


class QuestionRecords:
  """The questions of one split, in memory.

  Args:
    questions: Questions, each with an id.
    answer_kind: Whether the answers are strings or regular expressions.
  """

  spec: Mapping[str, tf.TensorSpec] = {
    "question": tf.TensorSpec((), tf.string),
    "answers": tf.TensorSpec((None,), tf.string),
    "question_id": tf.TensorSpec((), tf.string),
  }

  def __init__(self, questions: Sequence[Question], answer_kind: AnswerKind):
    self.questions, self._answer_kind = questions, answer_kind

  def __len__(self) -> int:
    return len(self.questions)

  def lookup(self, indices: Int[np.ndarray, " n"]) -> Mapping[str, Any]:
    """Returns questions by their number."""
    questions = [self.questions[index] for index in indices.tolist()]
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
    found, num_words = [], lengths["query"] - 2
    if cut := self._longer_than(num_words):
      named = [f"{name} ({size})" for name, size in cut.items()]
      found.append(
        f"{len(cut):,} of {len(self):,} questions have more than {num_words} "
        "wordpieces and are cut; raise QUERY_LENGTH to "
        f"{max(cut.values()) + 2} for all: {listed(named)}"
      )
    if unusable := list(self._unusable_answers()):
      found.append(
        f"{len(unusable):,} questions have no answer, or one that is no valid "
        "pattern and matches nothing; without any other, a question teaches "
        f"nothing and is scored as wrong: {listed(unusable)}"
      )
    return found

  def _longer_than(self, num_words: int) -> dict[str, int]:
    """Returns the number of wordpieces of each question that has more."""
    # The tokenizer may take more characters apart, never put them together.
    questions = [
      (name, text)
      for text, _, name in self.questions
      if len(unicodedata.normalize("NFKD", text)) > num_words
    ]
    if not questions:
      return {}
    names, texts = zip(*questions, strict=True)
    sizes = wordpieces().encode_tf(tf.constant(texts)).row_lengths().numpy()
    counted = zip(names, sizes.tolist(), strict=True)
    return {name: size for name, size in counted if size > num_words}

  def _unusable_answers(self) -> Iterator[str]:
    for _, answers, name in self.questions:
      bad = bad_patterns(answers) if self._answer_kind == "regex" else {}
      if bad:
        why = ", ".join(f"{text!r}: {reason}" for text, reason in bad.items())
        yield f"{name} ({why})"
      elif not any(answer.strip() for answer in answers):
        yield name


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
