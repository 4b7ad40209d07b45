"""Paths on object stores are told from local ones."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from etils import epath

from benchmarks.runs.object_store import StoreFault
from realm_jax.files.object_store.remote import (
  download,
  is_remote,
  objects_below,
  read_bytes,
  upload,
)


@pytest.mark.parametrize("path", ["gs://bucket/run", epath.Path("gs://b/run")])
def test_an_object_store_is_remote(path):
  assert is_remote(path)


@pytest.mark.parametrize("path", ["run", "/a/b", Path("/a"), epath.Path("a:b")])
def test_a_local_path_is_not(path):
  assert not is_remote(path)


def test_the_store_is_asked_once_for_an_object_or_all_below_a_folder(
  object_store,
):
  for name in ("a", "sub/b", "sub/deeper/c"):
    object_store.write(f"tree/{name}", name.encode())
  object_store.write("tree-not", b"x")
  with object_store.counted() as requests:
    found = objects_below(object_store.path("tree"))
  assert len(requests) == 1
  assert {name: info.bytes for name, info in found.items()} == {
    "a": 1,
    "sub/b": 5,
    "sub/deeper/c": 12,
  }
  object_store.write("tree/a", b"b")
  again = objects_below(object_store.path("tree/"))
  assert {name for name in found if found[name] != again[name]} == {"a"}
  assert objects_below(object_store.path("nothing")) == {}
  with object_store.counted() as requests:
    assert read_bytes(object_store.path("tree/sub/b")) == b"sub/b"
  assert len(requests) == 1
  with pytest.raises(FileNotFoundError):
    read_bytes(object_store.path("tree/sub"))


def test_files_are_copied_to_the_store_and_back(object_store, tmp_path):
  (tmp_path / "a").write_bytes(b"x" * (6 << 20))
  upload(tmp_path / "a", object_store.path("copied/a"))
  download(object_store.path("copied/a"), tmp_path / "b")
  assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
  with pytest.raises(FileNotFoundError):
    download(object_store.path("copied/c"), tmp_path / "c")
  assert not (tmp_path / "c").exists()


def test_a_listing_has_what_others_wrote_meanwhile(object_store):
  folder = epath.Path(object_store.path("listed"))
  object_store.write("listed/a", b"x")
  assert [path.name for path in folder.iterdir()] == ["a"]
  assert not (folder / "b").exists()
  object_store.write("listed/b", b"x")
  assert (folder / "b").exists()
  assert sorted(path.name for path in folder.iterdir()) == ["a", "b"]


def test_a_request_that_is_not_answered_is_repeated(object_store):
  object_store.write("hung", b"text")
  object_store.inject(StoreFault("hang", "^GET .*hung"))
  assert read_bytes(object_store.path("hung")) == b"text"
  assert object_store.happened() == [1]


def test_a_user_may_choose_the_client():
  command = "import os, realm_jax; print(os.environ['EPATH_USE_TF'])"
  environment = {**os.environ, "EPATH_USE_TF": "true"}
  for given in (environment, {**environment, "EPATH_USE_TF": ""}):
    printed = subprocess.run(
      [sys.executable, "-c", command],
      env=given,
      capture_output=True,
      check=True,
    ).stdout
    assert printed.decode().strip() == given["EPATH_USE_TF"]


def test_a_path_that_was_used_before_changes_its_client():
  command = """if True:
    import os
    os.environ.pop("EPATH_USE_TF", None)
    from etils import epath
    epath.Path("/").exists()
    import realm_jax
    print(type(epath.Path("gs://bucket/a")._backend).__name__)
  """
  printed = subprocess.run(
    [sys.executable, "-c", command], capture_output=True, check=True
  ).stdout
  assert b"FileSystemSpec" in printed
