"""Question files: what is wrong with one is said before a run starts."""

import re

import numpy as np
import pytest
from etils import epath

from realm_jax.inputs.questions.json_lines import JsonLinesRecords
from realm_jax.inputs.questions.question import QuestionFileError

_GOOD = b'{"question": "who?", "answer": ["Ada", "Ada Lovelace"]}\n'


@pytest.mark.parametrize(
  ("line", "complaint"),
  [
    (b"\n", "line 2, is empty"),
    (b'{"question": "who?"\n', "line 2: Expecting"),
    (b'["who?", "Ada"]\n', "line 2: it is a list, not an object"),
    (b'{"answer": ["Ada"]}\n', "line 2: the question is None"),
    (b'{"question": " ", "answer": ["Ada"]}\n', "line 2: the question is ' '"),
    (b'{"question": "who?"}\n', "line 2: the answer is None"),
    (b'{"question": "who?", "answer": []}\n', r"line 2: the answer is \[\]"),
    (b'{"question": "who?", "answer": [7]}\n', "line 2: one answer is 7"),
    (b'{"question": "wh\xff?", "answer": ["Ada"]}\n', "line 2: .*utf-8"),
  ],
)
def test_a_bad_line_is_named(tmp_path, line, complaint):
  path = tmp_path / "q.jsonl"
  path.write_bytes(_GOOD + line + _GOOD)
  with pytest.raises(QuestionFileError, match=complaint) as caught:
    JsonLinesRecords(epath.Path(path))
  assert re.search('q.jsonl, line 2.*wanted {"question"', str(caught.value))


def test_a_file_that_is_missing_or_empty(tmp_path):
  with pytest.raises(QuestionFileError, match=r"no file .*nowhere.jsonl"):
    JsonLinesRecords(epath.Path(tmp_path / "nowhere.jsonl"))
  (tmp_path / "empty.jsonl").touch()
  with pytest.raises(QuestionFileError, match=r"empty.jsonl has no line"):
    JsonLinesRecords(epath.Path(tmp_path / "empty.jsonl"))


def test_any_line_is_read_in_any_order(tmp_path):
  path = tmp_path / "q.jsonl"
  lines = [f'{{"question": "{"é" * i} ?", "answer": "a{i}"}}' for i in range(9)]
  path.write_text("\n".join(lines), encoding="utf-8")
  records = JsonLinesRecords(epath.Path(path))
  assert len(records) == 9
  found = records.lookup(np.array([8, 0, 8, 3]))
  assert [q.decode() for q in found["question"]] == [
    "é" * i + " ?" for i in (8, 0, 8, 3)
  ]
  assert found["question_id"] == [b"q:9", b"q:1", b"q:9", b"q:4"]


def test_all_bad_lines_are_counted_and_the_first_named(tmp_path):
  path = tmp_path / "q.jsonl"
  path.write_bytes(_GOOD + b"{\n" * 4 + b"\n" * 4)
  with pytest.raises(QuestionFileError) as caught:
    JsonLinesRecords(epath.Path(path))
  assert "line 6, is empty; and 3 more; wanted" in str(caught.value)
  assert "line 2: Expecting" in str(caught.value)


def test_an_id_belongs_to_one_question(tmp_path):
  path = tmp_path / "q.jsonl"
  lines = [
    f'{{"question": "{name}?", "answer": "a", "id": "{name}"}}\n'
    for name in ("x", "y", "x")
  ]
  path.write_text("".join(lines))
  with pytest.raises(QuestionFileError, match="line 3: line 1 has its id 'x'"):
    JsonLinesRecords(epath.Path(path))
