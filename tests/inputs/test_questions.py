"""Questions: what is wrong with them is said before a run starts."""

import gzip
import re

import pytest

from realm_jax.errors import RealmError
from realm_jax.inputs.batches import stream_batches
from realm_jax.inputs.config import TaskContext, TaskError
from realm_jax.inputs.examples import ExampleStream
from tests.inputs import tiny_corpus
from tests.json_lines import write_lines

_GOOD = b'{"question": "who?", "answer": ["Ada", "Ada Lovelace"], "id": "x"}\n'


def _read(tiny, path, *, task="open_qa", **fields):
  context = TaskContext(tiny.corpus_dir, {"train": path})
  config = tiny_corpus.config(task, context, **fields)
  return list(ExampleStream(config, shuffle=False, repeat=False))


@pytest.mark.parametrize(
  ("line", "complaint"),
  [
    (b'{"question": "who?"\n', "line 2: not JSON"),
    (b'{"answer": ["Ada"]}\n', "line 2: the question is None"),
    (b'{"question": "who?", "answer": []}\n', r"line 2: the answer is \[\]"),
    (b'{"question": "who?", "answer": [7]}\n', "line 2: one answer is 7"),
    (
      b'{"question": "wh\xff?", "answer": ["Ada"]}\n',
      "line 2: byte 17 .*UTF-8",
    ),
    (b'{"input": "who?", "output": 7}\n', "line 2: the output is 7"),
    (b'{"input": "who?", "output": [{}]}\n', r"line 2: the answer is \[\]"),
    (_GOOD, "line 2: line 1 has its id 'x'"),
    (b"\n" * 8 + _GOOD, "line 6: an empty line; and 4 more"),
    (rb'{"question": "\ud83d", "answer": ["Ada"]}', "line 2: .*surrogate"),
    (rb'{"question": "who?", "answer": ["\udc00"]}', "line 2: .*surrogate"),
    (b'{"n": %s}' % (b"3" * 5000), "line 2: .*4,300 digits"),
    (b'{"a":' * 100_000, "line 2: .*too many lists or objects"),
  ],
)
def test_bad_lines_are_counted_and_the_first_named(
  line, complaint, tiny, tmp_path
):
  path = tmp_path / "q.jsonl"
  path.write_bytes(_GOOD + line)
  with pytest.raises(TaskError, match=complaint) as caught:
    _read(tiny, path)
  assert re.search('q.jsonl, line 2.*wanted {"question"', str(caught.value))


def test_a_file_may_be_compressed_and_end_in_an_empty_line(tiny, tmp_path):
  path = tmp_path / "q.jsonl.gz"
  path.write_bytes(gzip.compress(_GOOD + b"\n"))
  assert len(_read(tiny, path)) == 1
  path.write_bytes(path.read_bytes()[:-9])
  with pytest.raises(RealmError, match=r"q\.jsonl\.gz cannot be decompressed"):
    _read(tiny, path)


def test_lines_of_kilt_are_questions(tiny, tmp_path):
  outputs = [
    {"answer": "SUPPORTS", "provenance": [{"wikipedia_id": "7", "title": "a"}]},
    {"provenance": [{"wikipedia_id": "8"}]},
    {"answer": "TRUE"},
  ]
  line = {"id": "75", "input": "Ada lived.", "output": outputs}
  (example,) = _read(tiny, write_lines(tmp_path / "fever.jsonl", [line]))
  assert example["question"] == b"Ada lived."
  assert example["question_id"] == b"75"
  assert example["answers"].tolist() == [b"SUPPORTS", b"TRUE"]


def test_a_file_that_is_missing_or_empty_is_named(tiny, tmp_path):
  with pytest.raises(FileNotFoundError, match=r"nowhere\.jsonl"):
    _read(tiny, tmp_path / "nowhere.jsonl")
  (tmp_path / "empty.jsonl").touch()
  with pytest.raises(TaskError, match=r"empty.jsonl has no line"):
    _read(tiny, tmp_path / "empty.jsonl")


def test_questions_that_are_cut_are_counted(tiny, tmp_path, caplog):
  questions = [{"question": "it " * n, "answer": "a"} for n in range(1, 20)]
  path = write_lines(tmp_path / "own.jsonl", questions)
  assert len(_read(tiny, path, query_length=12)) == 19
  (text,) = [said for said in caplog.messages if said.startswith("task")]
  assert "9 of 19 questions have more than 10 wordpieces" in text
  assert text.endswith(
    "QUERY_LENGTH to 21 for all: own:11 (11); own:12 (12); "
    "own:13 (13); own:14 (14); own:15 (15); and 4 more"
  )


def test_problems_name_the_file_of_their_split(tiny, tmp_path, caplog):
  questions = [{"question": "it " * 20, "answer": "a"}]
  path = write_lines(tmp_path / "dev.jsonl", questions)
  files = {**tiny.question_files, "dev": path}
  context = TaskContext(tiny.corpus_dir, files)
  config = tiny_corpus.config("open_qa", context, split="dev")
  assert len(list(stream_batches(config, shuffle=False, repeat=False))) == 1
  (text,) = [said for said in caplog.messages if "are cut" in said]
  assert text.startswith(f"{path}: 1 of 1 questions")


@pytest.mark.parametrize("task", ["open_qa", "judged_passages", "feedback"])
def test_a_split_without_a_file_is_named(tiny, task):
  config = tiny_corpus.config(task, TaskContext(tiny.corpus_dir))
  with pytest.raises(TaskError, match=r"no file of questions for .* 'train'"):
    ExampleStream(config)


def test_answers_that_match_nothing_are_counted(tiny, tmp_path, caplog):
  questions = [
    {"question": "who ?", "answer": ["(", "Ada"], "id": "a"},
    {"question": "when ?", "answer": ["[1"], "id": "b"},
    {"question": "where ?", "answer": ["B(ern|asel)"], "id": "c"},
  ]
  path = write_lines(tmp_path / "own.jsonl", questions)
  assert len(_read(tiny, path, task="open_qa_regex")) == 3
  (text,) = [said for said in caplog.messages if said.startswith("task")]
  assert "2 questions have no answer, or one that is no valid pattern" in text
  assert re.search(r"a \('\(': .*\); b \('\[1': .*\)$", text)
