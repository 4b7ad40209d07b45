"""JSON files and JSON Lines are whole or not there."""

import json

import pytest

from realm_jax.files.json_file import json_lines, write_json


def test_json_replaces_what_was_there(tmp_path):
  path = tmp_path / "deep" / "metrics.json"
  write_json(path, {"a": 1})
  write_json(path, {"a": 2, "name": "Zoë"})
  assert json.loads(path.read_text()) == {"a": 2, "name": "Zoë"}
  assert "Zoë" in path.read_text()
  assert [p.name for p in path.parent.iterdir()] == ["metrics.json"]


def test_lines_appear_when_all_are_written(tmp_path):
  path = tmp_path / "lines.jsonl"
  with json_lines(path) as write:
    write({"n": 1})
    assert not path.exists()
    write({"n": 2, "name": "Zoë"})
  assert path.read_text() == '{"n": 1}\n{"n": 2, "name": "Zoë"}\n'


def test_lines_that_fail_leave_the_old_file(tmp_path):
  path = tmp_path / "lines.jsonl"
  path.write_text("old")
  with pytest.raises(KeyError), json_lines(path) as write:
    write({"n": 1})
    raise KeyError
  assert path.read_text() == "old"
  assert [p.name for p in tmp_path.iterdir()] == ["lines.jsonl"]
