"""File formats that several data sets of questions share."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from etils import epath

from realm_jax.files.json_file import JsonValue
from realm_jax.inputs.questions.json_lines import (
  read_json_lines,
  read_question,
)
from realm_jax.inputs.questions.question import Question, QuestionFileError


def distinct(answers: list[str]) -> list[str]:
  """Returns the answers in their order, each once."""
  return list(dict.fromkeys(answers))


def json_lines(path: epath.Path) -> Iterator[Question]:
  """Reads lines of `{"question": …, "answer": […]}`, as of NQ-open and DrQA.

  An empty list of answers is kept, as published.
  """

  def to_question(fields: Mapping[str, JsonValue]) -> Question:
    if fields.get("answer") == []:
      return Question(str(fields["question"]), [])
    return read_question(fields)

  for question, _ in read_json_lines(path, to_question):
    yield question


def json_file(path: epath.Path) -> Any:
  """Returns the contents of a JSON file.

  Raises:
    QuestionFileError: It is not JSON, as a download that broke off.
  """
  try:
    return json.loads(path.read_text())
  except ValueError as error:
    raise QuestionFileError(f"{path} is not JSON: {error}") from error


def squad(path: epath.Path) -> Iterator[Question]:
  """Reads SQuAD's format, version 1.1: the questions of all paragraphs."""
  for article in json_file(path)["data"]:
    for paragraph in article["paragraphs"]:
      for entry in paragraph["qas"]:
        answers = [answer["text"] for answer in entry["answers"]]
        yield Question(entry["question"], distinct(answers), entry["id"])
