"""Sources of questions with their answers, such as files of your own."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from etils import epath
from jaxtyping import Int

from realm_jax.answers.match import AnswerKind
from realm_jax.answers.patterns import compiled
from realm_jax.inputs.config import TaskError, current_context
from realm_jax.inputs.features import wordpieces
from realm_jax.inputs.question_files import (
  WANTED,
  Question,
  ToQuestion,
  listed,
  read_json_lines,
  read_question,
)
from realm_jax.inputs.sources import RandomAccessSource
from realm_jax.text.wordpieces import MASK


class QuestionRecords:
  """The questions of one split, each with an id, in memory."""

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
    """Describes questions that will not be used or scored as they stand."""
    found, num_words = [], lengths["query"] - 2
    # One wordpiece, as a mark is.
    texts = [q.question.replace(MASK, ".") for q in self.questions]
    tokens = wordpieces().encode_tf(tf.constant(texts, tf.string))
    sizes = tokens.row_lengths().numpy()
    if cut := np.flatnonzero(sizes > num_words).tolist():
      named = [f"{self.questions[i].question_id} ({sizes[i]})" for i in cut]
      found.append(
        f"{len(cut):,} of {len(self):,} questions have more than {num_words} "
        f"wordpieces and are cut; raise QUERY_LENGTH to {sizes.max() + 2} for "
        f"all: {listed(named)}"
      )
    unusable = []
    for _, answers, name in self.questions:
      patterns = answers if self._answer_kind == "regex" else ()
      reasons = {text: compiled(text).problem for text in patterns}
      if bad := [f"{text!r}: {why}" for text, why in reasons.items() if why]:
        unusable.append(f"{name} ({', '.join(bad)})")
      elif not any(answer.strip() for answer in answers):
        unusable.append(name)
    if unusable:
      found.append(
        f"{len(unusable):,} questions have no answer, or one that is no valid "
        "pattern and matches nothing; without any other, a question teaches "
        f"nothing and is scored as wrong: {listed(unusable)}"
      )
    return found


class QuestionSource(RandomAccessSource):
  """A source of questions, whose answers are strings or regular expressions."""

  def __init__(
    self, *, splits: Sequence[str] = (), answer_kind: AnswerKind = "string"
  ):
    super().__init__(splits=splits, caching_permitted=False)
    self.answer_kind: AnswerKind = answer_kind


class JsonLinesSource(QuestionSource):
  """The questions of the run's files, one file for each split.

  The function `to_question` makes a question of a line's object, for files with
  other field names.
  """

  def __init__(
    self,
    to_question: ToQuestion = read_question,
    *,
    answer_kind: AnswerKind = "string",
  ):
    super().__init__(answer_kind=answer_kind)
    self._to_question = to_question

  def __str__(self) -> str:
    return f"the questions {dict(current_context().question_files)}"

  @property
  def splits(self) -> Sequence[str]:
    return tuple(current_context().question_files)

  def open(self, split: str) -> QuestionRecords:
    """Reads the whole file, so that a bad line is reported before a run starts.

    Raises:
      TaskError: A line is not a question, or there is none.
      FileNotFoundError: The file is missing.
    """
    path = epath.Path(current_context().question_files[split])
    questions = list(read_json_lines(path, self._to_question))
    if not questions:
      raise TaskError(f"{path} has no line; {WANTED}")
    return QuestionRecords(questions, self.answer_kind)
