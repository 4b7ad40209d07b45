"""Sources of questions with their answers, such as files of your own."""

from collections.abc import Sequence

from realm_jax.answers.match import AnswerKind
from realm_jax.inputs.question_files import (
  Question,
  QuestionRecords,
  ToQuestion,
  read_question,
  read_split,
)
from realm_jax.inputs.sources import RunFilesSource

__all__ = ["JsonLinesSource", "Question", "QuestionSource"]


class QuestionSource(RunFilesSource):
  """A source of questions, whose answers are strings or regular expressions."""

  def __init__(
    self, *, splits: Sequence[str] = (), answer_kind: AnswerKind = "string"
  ):
    super().__init__(splits)
    self.answer_kind: AnswerKind = answer_kind


class JsonLinesSource(QuestionSource):
  """The questions of the run's files, one file for each split.

  For files with other field names, `to_question` makes a question from a line's
  object.
  """

  def __init__(
    self,
    to_question: ToQuestion = read_question,
    *,
    answer_kind: AnswerKind = "string",
  ):
    super().__init__(answer_kind=answer_kind)
    self._to_question = to_question

  def open(self, split: str) -> QuestionRecords:
    return read_split(split, self.answer_kind, self._to_question)
