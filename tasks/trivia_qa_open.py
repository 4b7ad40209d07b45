"""TriviaQA's unfiltered questions: questions of quizzes, without documents.

An answer has aliases, all of which are right. The published test set has no
answers, so what TriviaQA publishes as its development set is the test set, as
in Lee et al. 2019. They have 78,785 questions in "train" and 8,837 in "dev",
and did not release how they divided them.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from realm_jax.inputs.published import (
  Files,
  PublishedSource,
  Tfds,
  distinct,
)
from realm_jax.inputs.questions import Question, QuestionFileError
from tasks import open_qa

_DATA = re.compile(r'"Data"\s*:\s*\[')
_SEPARATOR = re.compile(r"[\s,]*")


def _answers(value: str, aliases: Sequence[str]) -> list[str]:
  texts = [text.strip() for text in (value, *aliases)]
  return distinct([text for text in texts if text])


def _next_entry(text: str, place: int) -> int:
  """Returns where the next entry starts, or the list ends."""
  separator = _SEPARATOR.match(text, place)
  return separator.end() if separator else place


def read_file(path: epath.Path) -> Iterator[Question]:
  """Reads `{"Data": [{"Question": …, "QuestionId": …, "Answer": …}, …]}`.

  The file has 600 MB of search results besides, so entries are decoded one by
  one.

  Raises:
    QuestionFileError: It has no such entries, or breaks off.
  """
  text = path.read_text()
  begin = _DATA.search(text)
  if begin is None:
    raise QuestionFileError(f'{path} has no "Data"; wanted TriviaQA\'s JSON')
  decode = json.JSONDecoder().raw_decode
  place = _next_entry(text, begin.end())
  while not text.startswith("]", place):
    try:
      entry, place = decode(text, place)
    except ValueError as error:
      raise QuestionFileError(f"{path} is not JSON: {error}") from error
    place = _next_entry(text, place)
    answer = entry["Answer"]
    yield Question(
      entry["Question"].strip(),
      _answers(answer["Value"], answer["Aliases"]),
      entry["QuestionId"],
    )


def read_tfds(record: Mapping[str, Any]) -> Question:
  """Makes a question of a record of TFDS's `trivia_qa`."""
  answer = record["answer"]
  return Question(
    record["question"].decode(),
    _answers(
      answer["value"].decode(), [alias.decode() for alias in answer["aliases"]]
    ),
    record["question_id"].decode(),
  )


open_qa.add(
  "trivia_qa_open",
  PublishedSource(
    "TriviaQA (open)",
    sizes={"train+dev": 87_622, "test": 11_313},
    files=[
      Files(
        names={
          "train": ["unfiltered-web-train.json"],
          "test": ["unfiltered-web-dev.json"],
        },
        read=read_file,
      )
    ],
    tfds=Tfds(
      builder="trivia_qa/unfiltered.nocontext",
      names={"train": "train", "test": "validation"},
      read=read_tfds,
    ),
    get=(
      "wget http://nlp.cs.washington.edu/triviaqa/data/"
      "triviaqa-unfiltered.tar.gz"
    ),
  ),
)
