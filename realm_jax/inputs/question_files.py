"""Questions with their answers, in JSON Lines.

A file may be compressed (.gz, .bz2, .xz, .zst). To read it needs no seqio.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from etils import epath

from realm_jax.errors import RealmError
from realm_jax.inputs.batch import TaskError
from realm_jax.storage.json_files import (
  JsonValue,
  read_object,
  require_unicode,
)
from realm_jax.storage.line_files import lines_of

_MAX_LISTED = 5
WANTED = 'wanted {"question": "…", "answer": ["…"]} on every line'


class Question(NamedTuple):
  """A question, its alternative answers, and its id if it has one."""

  question: str
  answers: Sequence[str]
  question_id: str = ""


# Makes a question of a line's object; raises ValueError or KeyError if it is
# none.
ToQuestion: TypeAlias = Callable[[Mapping[str, JsonValue]], Question]


def listed(items: Sequence[str]) -> str:
  """Joins the first few items, and says how many there are besides."""
  text = "; ".join(items[:_MAX_LISTED])
  rest = len(items) - _MAX_LISTED
  return f"{text}; and {rest:,} more" if rest > 0 else text


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
    raise TaskError(f"{path}, {listed(complaints)}; {WANTED}")
