"""Files appear whole, on a disk and on an object store."""

import json
import tempfile

import pytest
from etils import epath

from realm_jax.storage.atomic import (
  TargetError,
  atomic_file,
  check_target,
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


def test_no_directory_is_prepared_beside_the_mount_point_of_a_disk(tmp_path):
  check_target(tmp_path / "new")
  with pytest.raises(TargetError, match="a directory in it, such as /new"):
    check_target("/")


def test_json_keeps_its_letters(tmp_path):
  value = {"name": "Zürich", "values": [1, 0.5, None]}
  write_json(tmp_path / "deep" / "metrics.json", value)
  text = (tmp_path / "deep" / "metrics.json").read_text(encoding="utf-8")
  assert '"Zürich"' in text and json.loads(text) == value
