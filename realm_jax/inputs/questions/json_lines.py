"""Your own questions: JSON Lines, one file for each split."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from etils import epath

from realm_jax.inputs.config import current_context
from realm_jax.inputs.questions.question import (
  Question,
  QuestionFileError,
  QuestionRecords,
  QuestionSource,
  listed,
)
from realm_jax.storage.json_files import JsonValue
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


def read_json_lines(
  path: epath.Path, to_question: ToQuestion = read_question
) -> Iterator[Question]:
  """Yields each line's question, which has an id.

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
        fields = json.loads(line)
        if not isinstance(fields, dict):
          raise ValueError(f"it is a {type(fields).__name__}, not an object")
        question = to_question(fields)
      except (ValueError, KeyError) as error:
        complaints.append(f"line {number}: {error}")
        continue
      name = question.question_id or f"{path.stem}:{number}"
      first = lines.setdefault(name, number) if question.question_id else number
      if first != number:
        complaints.append(f"line {number}: line {first} has its id {name!r}")
      if not complaints:
        yield question._replace(question_id=name)
  if complaints:
    raise QuestionFileError(f"{path}, {listed(complaints)}; {_WANTED}")


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

  def open(self, split: str) -> QuestionRecords:
    """Reads the whole file, so that a bad line is reported before a run starts.

    Raises:
      QuestionFileError: The file is missing, or a line is not a question.
    """
    path = epath.Path(current_context().question_files[split])
    if not path.is_file():
      raise QuestionFileError(f"there is no file of questions at {path}")
    questions = list(read_json_lines(path, self._to_question))
    if not questions:
      raise QuestionFileError(f"{path} has no line; {_WANTED}")
    return QuestionRecords(questions, self.answer_kind)
