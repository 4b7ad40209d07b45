"""A file holds the old contents or the new ones, never a part."""

import json

import pytest

from realm_jax.files import json_file, whole_file


def names(directory):
  return sorted(path.name for path in directory.iterdir())


def test_text_is_written_as_utf_8_and_directories_are_made(tmp_path):
  path = tmp_path / "a" / "b" / "name.txt"
  whole_file.write_text(path, "Zürich\n")
  assert path.read_bytes() == "Zürich\n".encode()
  assert names(path.parent) == ["name.txt"]


def test_readers_see_the_old_file_until_the_block_ends(tmp_path):
  path = tmp_path / "name"
  path.write_text("old")
  with whole_file.whole_text_file(path) as file:
    file.write("new")
    file.flush()
    assert path.read_text() == "old"
  assert path.read_text() == "new"


def test_a_block_that_raises_leaves_the_old_file(tmp_path):
  path = tmp_path / "name"
  path.write_text("old")
  with (
    pytest.raises(KeyboardInterrupt),
    whole_file.whole_text_file(path) as file,
  ):
    file.write("half")
    raise KeyboardInterrupt
  assert path.read_text() == "old"
  assert names(tmp_path) == ["name"]


def test_what_a_killed_writer_left_is_overwritten(tmp_path):
  (tmp_path / ".name.partial").write_text("half of something long")
  whole_file.write_text(tmp_path / "name", "new")
  assert (tmp_path / "name").read_text() == "new"
  assert names(tmp_path) == ["name"]


def test_json_keeps_its_letters_and_ends_in_a_newline(tmp_path):
  path = tmp_path / "values.json"
  json_file.write_json(path, {"name": "Zürich", "values": [1, 0.5, None]})
  text = path.read_text(encoding="utf-8")
  assert '"Zürich"' in text
  assert text.endswith("}\n")
  assert json.loads(text) == {"name": "Zürich", "values": [1, 0.5, None]}


def test_json_that_cannot_be_written_leaves_the_old_file(tmp_path):
  path = tmp_path / "values.json"
  json_file.write_json(path, [1])
  with pytest.raises(TypeError):
    json_file.write_json(path, {"set": [{1}]})
  assert json.loads(path.read_text()) == [1]
