"""Questions with their answers: their sources, and your own in JSON Lines.

A file of JSON Lines may be compressed (.gz, .bz2, .xz, .zst).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf
from etils import epath
from jaxtyping import Int

from realm_jax.answers.match import AnswerKind
from realm_jax.answers.patterns import compiled
from realm_jax.errors import RealmError
from realm_jax.inputs.config import TaskError, current_context
from realm_jax.inputs.features import wordpieces
from realm_jax.inputs.sources import RandomAccessSource
from realm_jax.storage.json_files import (
  JsonValue,
  read_object,
  require_unicode,
)
from realm_jax.storage.line_files import lines_of
from realm_jax.text.wordpieces import MASK

_MAX_LISTED = 5
_WANTED = 'wanted {"question": "…", "answer": ["…"]} on every line'


class Question(NamedTuple):
  """A question, its alternative answers, and its id if it has one."""

  question: str
  answers: Sequence[str]
  question_id: str = ""


# Makes a question of a line's object; raises ValueError or KeyError if it is
# none.
ToQuestion: TypeAlias = Callable[[Mapping[str, JsonValue]], Question]


def _listed(items: Sequence[str]) -> str:
  """Joins the first few items, and says how many there are besides."""
  text = "; ".join(items[:_MAX_LISTED])
  rest = len(items) - _MAX_LISTED
  return f"{text}; and {rest:,} more" if rest > 0 else text


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
        f"all: {_listed(named)}"
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
        f"nothing and is scored as wrong: {_listed(unusable)}"
      )
    return found


class QuestionSource(RandomAccessSource):
  """A source of questions, whose answers are strings or regular expressions."""

  def __init__(
    self, *, splits: Sequence[str] = (), answer_kind: AnswerKind = "string"
  ):
    super().__init__(splits=splits, caching_permitted=False)
    self.answer_kind: AnswerKind = answer_kind


def read_question(fields: Mapping[str, JsonValue]) -> Question:
  """Reads `{"question": …, "answer": […]}`, or "answers", and "id" if given.

  Raises:
    ValueError: A field is missing or is not text.
  """
  question = _text(fields.get("question"), "the question")
  answers = fields.get("answer", fields.get("answers"))
  answers = [answers] if isinstance(answers, str) else answers
  if not isinstance(answers, list) or not answers:
    raise RealmError(f"the answer is {answers!r}")
  question_id = fields.get("id")
  question_id = "" if question_id is None else str(question_id)
  require_unicode(question_id, f"the id {question_id!r}")
  texts = [_text(answer, "one answer") for answer in answers]
  return Question(question, texts, question_id)


def _text(value: JsonValue, name: str) -> str:
  if not isinstance(value, str) or not value.strip():
    raise RealmError(f"{name} is {value!r}")
  require_unicode(value, f"{name} {value!r}")
  return value


def read_json_lines(
  path: epath.Path, to_question: ToQuestion = read_question
) -> Iterator[Question]:
  """Yields each line's question, which has an id.

  Raises:
    TaskError: Lines that are no questions, or have the id of an earlier one;
      all are counted, and the first of them named.
  """
  complaints: list[str] = []
  lines: dict[str, int] = {}
  for number, line in enumerate(lines_of(path), start=1):
    try:
      question = to_question(read_object(line))
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
    raise TaskError(f"{path}, {_listed(complaints)}; {_WANTED}")


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
      raise TaskError(f"{path} has no line; {_WANTED}")
    return QuestionRecords(questions, self.answer_kind)
