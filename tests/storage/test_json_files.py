"""A file holds the old contents or the new ones, never a part."""

import json

import pytest

from realm_jax.storage.json_files import json_lines, write_json


def names(directory):
  return sorted(path.name for path in directory.iterdir())


def test_json_keeps_its_letters_and_replaces_what_was_there(tmp_path):
  path = tmp_path / "deep" / "metrics.json"
  write_json(path, {"a": 1})
  write_json(path, {"name": "Zürich", "values": [1, 0.5, None]})
  text = path.read_text(encoding="utf-8")
  assert '"Zürich"' in text
  assert text.endswith("}\n")
  assert json.loads(text) == {"name": "Zürich", "values": [1, 0.5, None]}
  assert names(path.parent) == ["metrics.json"]


def test_json_that_cannot_be_written_leaves_the_old_file(tmp_path):
  path = tmp_path / "values.json"
  write_json(path, [1])
  with pytest.raises(TypeError):
    write_json(path, {"set": [{1}]})
  assert json.loads(path.read_text()) == [1]


def test_lines_appear_when_all_are_written(tmp_path):
  path = tmp_path / "lines.jsonl"
  with json_lines(path) as write:
    write({"n": 1})
    assert not path.exists()
    write({"n": 2, "name": "Zoë"})
  assert path.read_text() == '{"n": 1}\n{"n": 2, "name": "Zoë"}\n'
