"""Published sets: their formats, their counts, and what is wrong with data."""

import json
from pathlib import Path

import pytest
import tensorflow_datasets as tfds
from etils import epath

from realm_jax.inputs import seqio_rows
from realm_jax.inputs.config import TaskContext, TaskError, task_context
from realm_jax.inputs.examples import find_task
from realm_jax.inputs.published import question_of_record
from realm_jax.inputs.question_files import Question
from realm_jax.tasks import published_questions

# TFDS reads its metadata by a method that protobuf will drop.
pytestmark = pytest.mark.filterwarnings(
  r"ignore:.*label\(\) is deprecated:DeprecationWarning"
)


def read(task: str, split: str, place: str | Path) -> list[Question]:
  """The questions of a split of a task, from a place."""
  source = find_task(task).source
  with task_context(TaskContext("no corpus", {split: place})):
    return list(source.open(split).questions)


def without_ids(questions: list[Question]) -> list[tuple[str, tuple[str, ...]]]:
  return [(q.question, tuple(q.answers)) for q in questions]


def _lines(questions: list[Question]) -> str:
  """NQ-open's and DrQA's format."""
  lines = [{"question": q.question, "answer": q.answers} for q in questions]
  return "".join(json.dumps(line) + "\n" for line in lines)


def _many(num: int) -> list[Question]:
  return [
    Question(f"what is {n} ?", [f"number {n}", str(n)]) for n in range(num)
  ]


def test_files_that_are_not_the_published_set_are_named(tmp_path):
  for file, content, task, split, message in (
    ("NQ-open.dev.jsonl", _lines(_many(3609)), "natural_questions_open", "test",
     r"has 3,609 questions .* 3,610 are published.*wget.*task open_qa$"),
    ("test.json", '[{"text": "who?"}]', "web_questions", "test",
     r"published format: .*qText"),
    ("curated-test.tsv", "1\tfactoid\twho?\n", "curated_trec", "test",
     r"line 1, has 3 columns"),
  ):  # fmt: skip
    (tmp_path / file).write_text(content)
    with pytest.raises(TaskError, match=message):
      read(task, split, tmp_path)


def test_entity_questions_have_a_file_for_each_relation(tmp_path, monkeypatch):
  monkeypatch.setitem(find_task("entity_questions").source.sizes, "test", 25)
  (tmp_path / "test").mkdir()
  whole = _many(25)
  for number in range(3):
    part = whole[10 * number : 10 * (number + 1)]
    entries = [{"question": q.question, "answers": q.answers} for q in part]
    path = tmp_path / "test" / f"P{number:03}.test.json"
    path.write_text(json.dumps(entries))
  found = read("entity_questions", "test", tmp_path)
  assert without_ids(found) == without_ids(whole)
  assert found[11].question_id == "P001.test:2"


ANSWERS = [{"text": "Jane Austen"}, {"text": "Jane Austen"}, {"text": "Austen"}]
ASKED = {"id": "q1", "question": "who wrote Emma?", "answers": ANSWERS}
SQUAD = {"data": [{"paragraphs": [{"qas": [ASKED]}]}]}
TRIVIA = {
  "Data": [
    {
      "Answer": {"Aliases": ["Austen", " "], "Value": "Jane Austen "},
      "Question": " who wrote Emma?",
      "QuestionId": "q1",
      "SearchResults": [{"Data": []}],
    },
  ],
  "Domain": "unfiltered",
}
RELEASED = [
  {
    "targetValue": '(list (description "Jane Austen") (description Austen))',
    "utterance": "who wrote Emma?",
  }
]


def test_published_formats(tmp_path):
  path = epath.Path(tmp_path / "published.json")
  released = published_questions.json_entries(published_questions._released)
  for read_file, published, name in (
    (published_questions.squad, SQUAD, "q1"),
    (published_questions.trivia_qa, TRIVIA, "q1"),
    (released, RELEASED, ""),
  ):
    path.write_text(json.dumps(published, indent=1))
    answers = ["Jane Austen", "Austen"]
    assert [*read_file(path)] == [Question("who wrote Emma?", answers, name)]


FIELDS = {
  "natural_questions_open": {"answer": [b"Jane Austen", b"Austen"]},
  "web_questions": {"answers": [b"Jane Austen", b"Austen"]},
  "squad/v1.1": {
    "answers": {"text": [b"Jane Austen", b"Jane Austen", b"Austen"]},
    "id": b"q1",
  },
  "trivia_qa/unfiltered.nocontext": {
    "answer": {"value": b"Jane Austen", "aliases": [b"Austen "]},
    "question_id": b"q1",
  },
}


@pytest.mark.slow
@pytest.mark.parametrize("builder", FIELDS)
def test_records_of_tfds(builder, tmp_path):
  record = {"question": b"who wrote Emma?", **FIELDS[builder]}
  features = tfds.builder(builder, data_dir=tmp_path).info.features
  assert record.keys() <= features.keys()
  for name, value in record.items():
    assert not isinstance(value, dict) or value.keys() <= features[name].keys()
  name = "q1" if b"q1" in record.values() else ""
  answers = ["Jane Austen", "Austen"]
  assert question_of_record(record) == Question(
    "who wrote Emma?", answers, name
  )


def test_sets_of_tfds_are_divided_like_files(tmp_path, monkeypatch):
  def read_prepared(*place):
    assert place == ("natural_questions_open", "train", str(tmp_path))
    for q in _many(30):
      answers = [*map(str.encode, q.answers)]
      yield {"question": q.question.encode(), "answer": answers}

  monkeypatch.setattr(seqio_rows, "read_prepared", read_prepared)
  name = "natural_questions_open"
  for split, size in (("train", 27), ("dev", 3)):
    monkeypatch.setitem(find_task(name).source.sizes, split, size)
  found = [
    read(name, split, f"tfds:{tmp_path}")
    for split in ("train", "dev", "train+dev")
  ]
  assert sorted(found[0] + found[1]) == sorted(found[2])
  assert found[2][4].question_id == "train:5"


def test_webquestions_divides_as_published(shared_data):
  """The released counts, from text as published."""
  place = shared_data / "webquestions"
  parts = {
    split: read("web_questions", split, place)
    for split in ("train", "dev", "test", "train+dev")
  }
  counts = {split: len(part) for split, part in parts.items()}
  assert counts == {"train": 3417, "dev": 361, "test": 2032, "train+dev": 3778}
  assert sorted(parts["train"] + parts["dev"]) == sorted(parts["train+dev"])
  assert parts["test"][0] == Question(
    "what does jamaican people speak?",
    ["Jamaican Creole English Language", "Jamaican English"],
    "wqs000000",
  )


def test_curated_trec_and_xquad_are_parts_of_what_was_published(shared_data):
  folder = shared_data / "curatedtrec"
  with pytest.raises(TaskError, match=r"several forms.*Name a file"):
    read("curated_trec", "test", folder)
  file, tested = (
    folder / f"large2470-{part}.tsv" for part in ("train", "test")
  )
  for split, size in (("train", 1549), ("dev", 155), ("train+dev", 1704)):
    assert len(read("curated_trec", split, file)) == size
  found = read("curated_trec", "test", tested)
  assert len(found) == 766
  assert find_task("curated_trec").source.answer_kind == "regex"
  assert found[2] == Question(
    "What is the most populated country in the world?", ["China"], "1544"
  )
  xquad = read("squad_open", "test", shared_data / "xquad_en")
  assert len(xquad) == 1190
  assert all(question.answers for question in xquad)
