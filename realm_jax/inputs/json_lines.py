"""Questions in JSON Lines as a seqio source."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf
from etils import epath
from jaxtyping import Int

from realm_jax.files.json_file import JsonValue
from realm_jax.inputs.context import current_context
from realm_jax.inputs.sources import Column, RandomAccessSource

_WANTED = 'wanted {"question": "…", "answer": ["…"]} on every line'


class QuestionFileError(ValueError):
  """A question file that cannot be read; the message names file and line."""


class Question(NamedTuple):
  """A question, its alternative answers, and its id if it has one."""

  question: str
  answers: Sequence[str]
  question_id: str = ""


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


class QuestionRecords:
  """The questions of one file, read by the offsets of its lines.

  The whole file is checked first, so that a bad line is reported before a run
  starts.

  Raises:
    QuestionFileError: The file is missing, or a line is not a question.
  """

  spec: Mapping[str, tf.TensorSpec] = {
    "question": tf.TensorSpec((), tf.string),
    "answers": tf.TensorSpec((None,), tf.string),
    "question_id": tf.TensorSpec((), tf.string),
  }

  def __init__(self, path: epath.Path, to_question: ToQuestion = read_question):
    self._path = path
    self._to_question = to_question
    if not path.is_file():
      raise QuestionFileError(f"there is no file of questions at {path}")
    offsets = [0]
    with path.open("rb") as file:
      for line in file:
        self._parse(line, len(offsets) - 1)
        offsets.append(offsets[-1] + len(line))
    self._offsets = np.array(offsets, np.int64)
    if len(offsets) == 1:
      raise QuestionFileError(f"{path} has no line; {_WANTED}")

  def __len__(self) -> int:
    return len(self._offsets) - 1

  def _parse(self, line: bytes, index: int) -> Question:
    place = f"{self._path}, line {index + 1}"
    if not line.strip():
      raise QuestionFileError(f"{place}, is empty; {_WANTED}")
    try:
      fields = json.loads(line)
      if not isinstance(fields, dict):
        raise ValueError(f"it is a {type(fields).__name__}, not an object")
      question = self._to_question(fields)
    except (ValueError, KeyError) as error:
      raise QuestionFileError(f"{place}: {error}; {_WANTED}") from error
    if not question.question_id:
      question = question._replace(question_id=f"{self._path.stem}:{index + 1}")
    return question

  def lookup(self, indices: Int[np.ndarray, " n"]) -> Mapping[str, Column]:
    """Reads questions by line."""
    questions = []
    with self._path.open("rb") as file:
      for index in indices.tolist():
        start, limit = self._offsets[index : index + 2].tolist()
        file.seek(start)
        questions.append(self._parse(file.read(limit - start), index))
    return {
      "question": [q.question.encode() for q in questions],
      "answers": [
        np.array([answer.encode() for answer in q.answers], object)
        for q in questions
      ],
      "question_id": [q.question_id.encode() for q in questions],
    }


class JsonLinesSource(RandomAccessSource):
  """The questions of the run's files, of which each is a split.

  Give your own function for a data set with other field names.
  """

  def __init__(self, to_question: ToQuestion = read_question):
    super().__init__(splits=(), caching_permitted=False)
    self._to_question = to_question

  def __str__(self) -> str:
    return f"the questions {dict(current_context().question_files)}"

  @property
  def splits(self) -> Sequence[str]:
    return tuple(current_context().question_files)

  def open(self, split: str) -> QuestionRecords:
    """Opens the file; raises `QuestionFileError` if it has a bad line."""
    path = current_context().question_files[split]
    return QuestionRecords(epath.Path(path), self._to_question)
