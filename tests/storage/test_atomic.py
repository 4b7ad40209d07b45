"""Files and directories appear whole, on a disk and on an object store."""

import json
import tempfile
from pathlib import Path

import pytest
from etils import epath

from benchmarks.runs.object_store import StoreFault
from realm_jax.storage.atomic import (
  TargetError,
  atomic_file,
  check_target,
  rename_into_place,
  staging_directory,
)
from realm_jax.storage.json_files import json_lines, write_json


@pytest.fixture(params=["disk", "store"])
def folder(request, tmp_path, monkeypatch) -> epath.Path:
  """An empty folder; temporary files are looked for in `tmp_path`."""
  if request.param == "disk":
    return epath.Path(tmp_path / "folder")
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  store = request.getfixturevalue("object_store")
  return epath.Path(store.path(f"atomic_file/{tmp_path.name}"))


def test_readers_see_the_old_file_until_the_block_ends(folder):
  path = folder / "new" / "a.bin"
  with atomic_file(path) as written:
    written.write_bytes(b"first")
    assert not path.exists()
  with atomic_file(path) as written:
    written.write_bytes(b"second")
    assert path.read_bytes() == b"first"
  assert path.read_bytes() == b"second"
  assert [found.name for found in path.parent.iterdir()] == ["a.bin"]


def test_a_block_that_raises_leaves_what_was_there(folder, tmp_path):
  write_json(folder / "a.json", 1)
  with pytest.raises(KeyboardInterrupt), json_lines(folder / "a.json") as write:
    write({"half": 1})
    raise KeyboardInterrupt
  with pytest.raises(KeyboardInterrupt), atomic_file(folder / "b") as written:
    written.write_bytes(b"half")
    raise KeyboardInterrupt
  assert (folder / "a.json").read_text() == "1\n"
  assert [path.name for path in folder.iterdir()] == ["a.json"]
  assert {path.name for path in tmp_path.glob("realm_jax-*/*")} <= {".lock"}


def test_writers_of_the_same_file_do_not_meet(folder):
  path = folder / "a"
  with (
    atomic_file(path, several_writers=True) as one,
    atomic_file(path, several_writers=True) as other,
  ):
    one.write_text("one")
    other.write_text("other")
    assert one != other
  assert path.read_text() == "one"
  assert [found.name for found in folder.iterdir()] == ["a"]


def test_an_upload_whose_answer_is_lost_is_repeated(object_store):
  path = epath.Path(object_store.path("repeated.json"))
  object_store.inject(StoreFault("lose answer", "^POST /upload"))
  write_json(path, [1])
  assert object_store.happened() == [1]
  assert path.read_text() == "[\n  1\n]\n"


def names(directory):
  return sorted(path.name for path in directory.iterdir())


def build(target: Path, text: str, *, overwrite: bool = False) -> None:
  with staging_directory(target) as staging:
    assert names(staging) == []
    (staging / "sub").mkdir()
    (staging / "sub" / "file").write_text(text)
    rename_into_place(staging, target, overwrite=overwrite)


def test_a_directory_is_made_and_replaced(tmp_path):
  target = tmp_path / "new" / "target"
  build(target, "first")
  assert (target / "sub" / "file").read_text() == "first"
  with pytest.raises(OSError):
    build(target, "second")
  assert (target / "sub" / "file").read_text() == "first"
  build(target, "second", overwrite=True)
  assert (target / "sub" / "file").read_text() == "second"
  assert names(tmp_path / "new") == ["target"]


def test_a_block_that_raises_leaves_nothing(tmp_path):
  with (
    pytest.raises(KeyboardInterrupt),
    staging_directory(tmp_path / "target") as staging,
  ):
    (staging / "file").touch()
    raise KeyboardInterrupt
  assert names(tmp_path) == []


def test_a_second_writer_of_the_same_target_is_refused(tmp_path):
  target = tmp_path / "target"
  with staging_directory(target):
    with pytest.raises(TargetError, match="another process is building"):
      build(target, "text")
    build(tmp_path / "other", "text")
  build(target, "text")


def test_what_a_killed_process_left_is_removed(tmp_path):
  (tmp_path / ".target.building" / "half").mkdir(parents=True)
  (tmp_path / ".target.building" / "file").touch()
  build(tmp_path / "target", "text")
  assert names(tmp_path) == ["target"]
  assert names(tmp_path / "target") == ["sub"]


def test_targets_that_cannot_be_replaced_are_refused(tmp_path):
  check_target(tmp_path / "new")
  check_target(tmp_path)
  (tmp_path / "file").touch()
  with pytest.raises(TargetError, match="is a file"):
    check_target(tmp_path / "file")
  with pytest.raises(TargetError, match="a directory in it, such as /new"):
    check_target("/")


def test_json_keeps_its_letters(tmp_path):
  value = {"name": "Zürich", "values": [1, 0.5, None]}
  write_json(tmp_path / "deep" / "metrics.json", value)
  text = (tmp_path / "deep" / "metrics.json").read_text(encoding="utf-8")
  assert '"Zürich"' in text and json.loads(text) == value
  with json_lines(tmp_path / "lines.jsonl") as write:
    write({"n": 1})
    write({"n": 2, "name": "Zoë"})
  text = (tmp_path / "lines.jsonl").read_text()
  assert text == '{"n": 1}\n{"n": 2, "name": "Zoë"}\n'
