"""Single questions that will not work as they stand are counted and listed."""

import json

import pytest
from absl import logging

from realm_jax.inputs.config import TaskContext
from realm_jax.inputs.examples import ExampleStream
from realm_jax.inputs.questions.published import LoadedQuestions
from realm_jax.inputs.questions.question import Question
from tests.inputs import tiny_corpus


@pytest.fixture
def warnings(monkeypatch):
  """What is logged as a warning."""
  found = []
  monkeypatch.setattr(
    logging, "warning", lambda text, *values: found.append(text % values)
  )
  return found


def _open(tiny, tmp_path, questions, *, task="open_qa", query_length=16):
  path = tmp_path / "own.jsonl"
  path.write_text("".join(json.dumps(q) + "\n" for q in questions))
  context = TaskContext(tiny.corpus_dir, {"train": path})
  config = tiny_corpus.config(task, context, query_length=query_length)
  return list(ExampleStream(config, shuffle=False, repeat=False))


def test_questions_that_are_cut(tiny, tmp_path, warnings):
  questions = [{"question": "it " * n, "answer": "a"} for n in range(1, 20)]
  examples = _open(tiny, tmp_path, questions, query_length=12)
  assert len(examples) == 19
  assert warnings == [
    "task 'open_qa', split 'train': 9 of 19 questions have more than 10 "
    "wordpieces and are cut; raise QUERY_LENGTH to 21 for all: own:11 (11); "
    "own:12 (12); own:13 (13); own:14 (14); own:15 (15); and 4 more"
  ]


def test_patterns_that_are_not_valid(tiny, tmp_path, warnings):
  questions = [
    {"question": "who ?", "answer": ["(", "Ada"], "id": "a"},
    {"question": "when ?", "answer": ["[1"], "id": "b"},
    {"question": "where ?", "answer": ["B(ern|asel)"], "id": "c"},
  ]
  examples = _open(tiny, tmp_path, questions, task="open_qa_regex")
  assert len(examples) == 3
  of_task = [text for text in warnings if text.startswith("task")]
  assert len(of_task) == 2
  assert "2 answers are no valid patterns" in of_task[0]
  assert "a ('(':" in of_task[0]
  assert of_task[1].endswith(
    "1 questions have no valid pattern; they teach nothing and are scored as "
    "wrong: b"
  )


def test_published_questions_without_answers_and_with_one_id():
  questions = [
    Question("who ?", [], "a"),
    Question("when ?", [" "], "b"),
    Question("where ?", ["here"], "b"),
  ]
  records = LoadedQuestions(questions, answer_kind="string")
  assert records.problems({"query": 64}) == [
    "2 questions have no answer; they teach nothing and are scored as wrong: "
    "a; b",
    "1 ids belong to several questions, whose predictions cannot be told "
    "apart: b",
  ]
