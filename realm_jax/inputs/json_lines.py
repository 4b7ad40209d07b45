"""Questions in JSON Lines as a seqio source."""

import functools
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from etils import epath
from jaxtyping import Int

from realm_jax.inputs.context import TaskError, current_context
from realm_jax.inputs.sources import Column, RandomAccessSource

_WANTED = 'wanted {"question": "…", "answer": ["…"]} on every line'


class QuestionFileError(ValueError):
  """A file of questions that cannot be read; names the file and line."""


class Question(NamedTuple):
  """A question, its answers (any of them will do), and an id if it has one."""

  question: str
  answers: Sequence[str]
  question_id: str | None = None


def read_question(fields: Mapping[str, Any]) -> Question:
  """Reads `{"question": …, "answer": […]}`; "answers" and "id" are known too.

  Raises:
    ValueError: a field is missing or is not text.
  """
  question = fields.get("question")
  if not isinstance(question, str) or not question.strip():
    raise ValueError(f"the question is {question!r}")
  answers = fields.get("answer", fields.get("answers"))
  if isinstance(answers, str):
    answers = [answers]
  if not isinstance(answers, list) or not answers:
    raise ValueError(f"the answer is {answers!r}")
  for answer in answers:
    if not isinstance(answer, str) or not answer.strip():
      raise ValueError(f"one answer is {answer!r}")
  question_id = fields.get("id")
  return Question(
    question, answers, None if question_id is None else str(question_id)
  )


class QuestionRecords:
  """The questions of one file, found by the offsets of its lines."""

  def __init__(
    self,
    path: epath.Path,
    to_question: Callable[[Mapping[str, Any]], Question] = read_question,
  ):
    """Reads the file once, so that a bad line is known before a run starts.

    Raises:
      QuestionFileError: the file is missing, or a line is not a question.
    """
    self._path = path
    self._to_question = to_question
    self._lock = threading.Lock()
    try:
      self._file = path.open("rb")
    except OSError as error:
      raise QuestionFileError(f"no questions at {path}: {error}") from error
    offsets = [0]
    for line in self._file:
      self._parse(line, len(offsets) - 1)
      offsets.append(offsets[-1] + len(line))
    self._offsets = np.array(offsets, np.int64)
    if len(offsets) == 1:
      raise QuestionFileError(f"{path} has no line; {_WANTED}")

  @property
  def spec(self) -> Mapping[str, tf.TensorSpec]:
    return {
      "question": tf.TensorSpec((), tf.string),
      "answers": tf.TensorSpec((None,), tf.string),
      "question_id": tf.TensorSpec((), tf.string),
    }

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
    if question.question_id is None:
      question = question._replace(question_id=f"{self._path.stem}:{index + 1}")
    return question

  def _line(self, index: int) -> bytes:
    start, limit = self._offsets[index : index + 2].tolist()
    with self._lock:
      self._file.seek(start)
      return self._file.read(limit - start)

  def lookup(self, indices: Int[np.ndarray, " n"]) -> Mapping[str, Column]:
    questions = [self._parse(self._line(i), i) for i in indices.tolist()]
    return {
      "question": [q.question.encode() for q in questions],
      "answers": [
        np.array([answer.encode() for answer in q.answers], object)
        for q in questions
      ],
      "question_id": [q.question_id.encode() for q in questions],
    }


_open_questions = functools.lru_cache(maxsize=16)(QuestionRecords)


class JsonLinesSource(RandomAccessSource):
  """The questions of the run's files, one file a split.

  Args:
    to_question: makes a `Question` of a line's object; another data set's
      field names are read here. It raises `ValueError` or `KeyError` where
      the object is no question.
  """

  def __init__(
    self,
    to_question: Callable[[Mapping[str, Any]], Question] = read_question,
  ):
    super().__init__(splits=(), caching_permitted=False)
    self._to_question = to_question

  def __str__(self) -> str:
    return f"the questions {dict(current_context().question_files)}"

  @property
  def splits(self) -> Sequence[str]:
    return tuple(current_context().question_files)

  def open(self, split: str) -> QuestionRecords:
    """The questions of a split; raises `TaskError` where it has no file."""
    files = current_context().question_files
    if split not in files:
      raise TaskError(
        f"there is no file of questions for the split {split!r}, only for "
        f"{sorted(files) or 'none'}; name one in question_files"
      )
    return _open_questions(epath.Path(files[split]), self._to_question)
