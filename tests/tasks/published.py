"""Questions in the published formats, and TFDS's builders that read them."""

import json
from pathlib import Path
from typing import Any

import pytest
import tensorflow_datasets as tfds

from realm_jax.inputs.config import TaskContext, task_context
from realm_jax.inputs.examples import find_task
from realm_jax.inputs.questions import Question

# What is read, as it was written.
QUESTIONS = (
  Question("who wrote Emma?", ["Jane Austen", "Austen"], "q1"),
  Question("where is São Paulo ?", ["Brazil"], "q2"),
  Question("when did it end", ["1945 (May)", "1945"], "q3"),
)


def read(task: str, split: str, place: str | Path) -> list[Question]:
  """The questions of a split of a task, from a place."""
  source = find_task(task).source
  with task_context(TaskContext("no corpus", {split: place})):
    return list(source.open(split).questions)


def without_ids(questions: list[Question]) -> list[tuple[str, tuple[str, ...]]]:
  return [(q.question, tuple(q.answers)) for q in questions]


def write_lines(path: Path, questions: list[Question]) -> None:
  """NQ-open's and DrQA's format."""
  lines = [{"question": q.question, "answer": q.answers} for q in questions]
  path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_release(path: Path, questions: list[Question]) -> None:
  """WebQuestions' own format; bare descriptions have no space."""

  def description(text: str) -> str:
    quoted = f'"{text}"' if not text.isalnum() else text
    return f"(description {quoted})"

  entries = [
    {
      "url": "http://www.freebase.com/view/en/it",
      "targetValue": f"(list {' '.join(map(description, q.answers))})",
      "utterance": q.question,
    }
    for q in questions
  ]
  path.write_text(json.dumps(entries))


def write_squad(path: Path, questions: list[Question]) -> None:
  """A paragraph for each question, and its first answer given twice."""
  paragraphs = [
    {
      "context": " ".join(q.answers),
      "qas": [
        {
          "id": q.question_id,
          "question": q.question,
          "answers": [
            {"text": text, "answer_start": 0}
            for text in (q.answers[0], *q.answers)
          ],
        }
      ],
    }
    for q in questions
  ]
  data = [{"title": "It", "paragraphs": [p]} for p in paragraphs]
  path.write_text(json.dumps({"data": data, "version": "1.1"}))


def write_trivia(path: Path, questions: list[Question]) -> None:
  """TriviaQA's format, in the lines that TFDS expects."""
  entries = [
    {
      "Answer": {
        "Aliases": [*q.answers, q.answers[0]],
        "NormalizedAliases": [answer.lower() for answer in q.answers],
        "NormalizedValue": q.answers[0].lower(),
        "Type": "FreeForm",
        "Value": q.answers[0],
      },
      "EntityPages": [],
      "Question": q.question,
      "QuestionId": q.question_id,
      "QuestionSource": "http://www.example.org/",
      "SearchResults": [],
    }
    for q in questions
  ]
  text = json.dumps({"Data": entries, "Domain": "unfiltered"}, indent=4)
  path.write_text(text)


def prepare(
  builder: str,
  directory: Path,
  splits: dict[str, dict[str, Any]],
  patch: pytest.MonkeyPatch,
) -> str:
  """Lets a builder of TFDS write its splits from files of ours.

  Each split has the arguments of the builder's own `_generate_examples`, which
  are usually files that it has downloaded. Returns the place for a task.
  """
  found = tfds.builder(builder, data_dir=directory)
  patch.setattr(
    type(found),
    "_split_generators",
    lambda self, dl_manager: {
      split: self._generate_examples(**arguments)
      for split, arguments in splits.items()
    },
  )
  found.download_and_prepare()
  return f"tfds:{directory}"
