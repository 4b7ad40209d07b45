"""Your own questions: JSON Lines, one file for each split."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from etils import epath

from realm_jax.files.json_file import JsonValue
from realm_jax.inputs.config import current_context
from realm_jax.inputs.questions.checks import QuestionChecks, listed
from realm_jax.inputs.questions.question import (
  Question,
  QuestionFileError,
  QuestionRecords,
  QuestionSource,
)
from realm_jax.text.answers import AnswerKind

_WANTED = 'wanted {"question": "…", "answer": ["…"]} on every line'

# Makes a question of a line's object; raises ValueError or KeyError if it is
# none.
ToQuestion: TypeAlias = Callable[[Mapping[str, JsonValue]], Question]


def read_question(fields: Mapping[str, JsonValue]) -> Question:
  """Reads `{"question": …, "answer": […]}`, or "answers", and "id" if given.

  Raises:
    ValueError: A field is missing or is not text.
  """
  question = _text(fields.get("question"), "the question")
  answers = fields.get("answer", fields.get("answers"))
  answers = [answers] if isinstance(answers, str) else answers
  if not isinstance(answers, list) or not answers:
    raise ValueError(f"the answer is {answers!r}")
  question_id = fields.get("id")
  question_id = "" if question_id is None else str(question_id)
  texts = [_text(answer, "one answer") for answer in answers]
  return Question(question, texts, question_id)


def _text(value: JsonValue, name: str) -> str:
  if not isinstance(value, str) or not value.strip():
    raise ValueError(f"{name} is {value!r}")
  return value


def _parse(line: bytes, to_question: ToQuestion) -> Question:
  """Raises ValueError or KeyError if the line is no question."""
  fields = json.loads(line)
  if not isinstance(fields, dict):
    raise ValueError(f"it is a {type(fields).__name__}, not an object")
  return to_question(fields)


def read_json_lines(
  path: epath.Path, to_question: ToQuestion = read_question
) -> Iterator[tuple[Question, int]]:
  """Yields each line's question, which has an id, and its number of bytes.

  Raises:
    QuestionFileError: Lines that are no questions, or have the id of an earlier
      one; all are counted, and the first of them named.
  """
  complaints: list[str] = []
  lines: dict[str, int] = {}
  with path.open("rb") as file:
    for number, line in enumerate(file, start=1):
      if not line.strip():
        complaints.append(f"line {number}, is empty")
        continue
      try:
        question = _parse(line, to_question)
      except (ValueError, KeyError) as error:
        complaints.append(f"line {number}: {error}")
        continue
      name = question.question_id or f"{path.stem}:{number}"
      first = lines.setdefault(name, number) if question.question_id else number
      if first != number:
        complaints.append(f"line {number}: line {first} has its id {name!r}")
      if not complaints:
        yield question._replace(question_id=name), len(line)
  if complaints:
    raise QuestionFileError(f"{path}, {listed(complaints)}; {_WANTED}")


class JsonLinesRecords(QuestionRecords):
  """The questions of one file, read by the offsets of its lines.

  The whole file is checked first, so that a bad line is reported before a run
  starts.

  Raises:
    QuestionFileError: The file is missing, or a line is not a question.
  """

  def __init__(
    self,
    path: epath.Path,
    to_question: ToQuestion = read_question,
    *,
    answer_kind: AnswerKind = "string",
  ):
    self._path = path
    self._to_question = to_question
    if not path.is_file():
      raise QuestionFileError(f"there is no file of questions at {path}")
    checks = QuestionChecks(answer_kind)
    offsets = [0]
    for question, num_bytes in read_json_lines(path, to_question):
      checks.note(*question)
      offsets.append(offsets[-1] + num_bytes)
    self._offsets = np.array(offsets, np.int64)
    if len(offsets) == 1:
      raise QuestionFileError(f"{path} has no line; {_WANTED}")
    super().__init__(checks)

  def __len__(self) -> int:
    return len(self._offsets) - 1

  def questions(self, indices: Sequence[int]) -> list[Question]:
    """Reads questions by line."""
    questions = []
    with self._path.open("rb") as file:
      for index in indices:
        start, limit = self._offsets[index : index + 2].tolist()
        file.seek(start)
        try:
          question = _parse(file.read(limit - start), self._to_question)
        except (ValueError, KeyError) as error:
          raise QuestionFileError(
            f"{self._path}, line {index + 1}, has changed since it was "
            f"checked: {error}"
          ) from error
        name = question.question_id or f"{self._path.stem}:{index + 1}"
        questions.append(question._replace(question_id=name))
    return questions


class JsonLinesSource(QuestionSource):
  """The questions of the run's files, of which each is a split.

  Args:
    to_question: Function that makes a question of a line's object, for files
      with other field names.
    answer_kind: Whether the answers are strings or regular expressions.
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

  def open(self, split: str) -> JsonLinesRecords:
    """Opens the file; raises `QuestionFileError` if it has a bad line."""
    path = current_context().question_files[split]
    return JsonLinesRecords(
      epath.Path(path), self._to_question, answer_kind=self.answer_kind
    )
