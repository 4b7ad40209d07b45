"""Files that are whole or not there."""

import json

import pytest

from realm_jax.evaluation import outputs


def test_json_replaces_what_was_there(tmp_path):
  path = tmp_path / "deep" / "metrics.json"
  outputs.write_json(path, {"a": 1})
  outputs.write_json(path, {"a": 2, "name": "Zoë"})
  assert json.loads(path.read_text()) == {"a": 2, "name": "Zoë"}
  assert "Zoë" in path.read_text()
  assert [p.name for p in path.parent.iterdir()] == ["metrics.json"]


def test_lines_appear_when_all_are_written(tmp_path):
  path = tmp_path / "lines.jsonl"
  with outputs.json_lines(path) as write:
    write({"n": 1})
    assert not path.exists()
    write({"n": 2})
  assert path.read_text() == '{"n": 1}\n{"n": 2}\n'


def test_lines_that_fail_leave_the_old_file(tmp_path):
  path = tmp_path / "lines.jsonl"
  path.write_text("old")
  with pytest.raises(KeyError), outputs.json_lines(path) as write:
    write({"n": 1})
    raise KeyError
  assert path.read_text() == "old"
  assert [p.name for p in tmp_path.iterdir()] == ["lines.jsonl"]


def test_lines_without_a_path_go_nowhere():
  with outputs.json_lines(None) as write:
    write({"n": 1})


def test_the_table_is_aligned():
  assert outputs.table({"exact_match": 0.5, "n": 3, "mrr": 1 / 3}) == (
    "exact_match  0.5000\nn            3\nmrr          0.3333"
  )
