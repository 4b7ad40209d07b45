"""A file appears whole, on a disk and on an object store."""

import signal
import subprocess
import sys
import tempfile

import pytest
from etils import epath

from benchmarks.runs.object_store import StoreFault
from realm_jax.files.json_file import json_lines, write_json
from realm_jax.files.whole.whole_file import whole_file


@pytest.fixture(params=["disk", "store"])
def folder(request, tmp_path, monkeypatch) -> epath.Path:
  """An empty folder; temporary files are looked for in `tmp_path`."""
  if request.param == "disk":
    return epath.Path(tmp_path / "folder")
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  store = request.getfixturevalue("object_store")
  return epath.Path(store.path(f"whole_file/{tmp_path.name}"))


def test_readers_see_the_old_file_until_the_block_ends(folder):
  path = folder / "new" / "a.bin"
  with whole_file(path) as written:
    written.write_bytes(b"first")
    assert not path.exists()
  with whole_file(path) as written:
    written.write_bytes(b"second")
    assert path.read_bytes() == b"first"
  assert path.read_bytes() == b"second"
  assert [found.name for found in path.parent.iterdir()] == ["a.bin"]


def test_a_block_that_raises_leaves_what_was_there(folder, tmp_path):
  write_json(folder / "a.json", 1)
  with pytest.raises(KeyboardInterrupt), json_lines(folder / "a.json") as write:
    write({"half": 1})
    raise KeyboardInterrupt
  with pytest.raises(KeyboardInterrupt), whole_file(folder / "b") as written:
    written.write_bytes(b"half")
    raise KeyboardInterrupt
  assert (folder / "a.json").read_text() == "1\n"
  assert [path.name for path in folder.iterdir()] == ["a.json"]
  assert not list(tmp_path.glob("realm_jax-*/*"))


_KILLED = """
import os, signal
from realm_jax.files.whole.whole_file import whole_file
with whole_file("gs://bucket/file") as written:
  written.write_text("half")
  os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_writer_to_a_bucket_leaves_goes_with_the_next_file(
  object_store, tmp_path, monkeypatch
):
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  monkeypatch.setenv("TMPDIR", str(tmp_path))
  done = subprocess.run(
    [sys.executable, "-c", _KILLED], capture_output=True, text=True
  )
  assert done.returncode == -signal.SIGKILL, done.stderr
  assert [path.name for path in tmp_path.rglob("file")] == ["file"]
  write_json(object_store.path("after_a_killed_writer.json"), {})
  assert not list(tmp_path.glob("realm_jax-*/*"))


def test_writers_of_the_same_file_do_not_meet(folder):
  path = folder / "a"
  with (
    whole_file(path, several_writers=True) as one,
    whole_file(path, several_writers=True) as other,
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


def test_an_upload_that_is_refused_leaves_nothing(object_store):
  path = epath.Path(object_store.path("refused.json"))
  object_store.inject(StoreFault("refuse", "^POST /upload", status=403))
  with pytest.raises(OSError, match="Forbidden"):
    write_json(path, [1])
  assert not path.exists()
