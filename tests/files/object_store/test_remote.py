"""Paths on object stores are told from local ones."""

import pytest

from benchmarks.runs.object_store import StoreFault
from realm_jax.files.object_store.remote import (
  download,
  objects_below,
  read_bytes,
  upload,
)


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


def test_a_request_that_is_not_answered_is_repeated(object_store):
  object_store.write("hung", b"text")
  object_store.inject(StoreFault("hang", "^GET .*hung"))
  assert read_bytes(object_store.path("hung")) == b"text"
  assert object_store.happened() == [1]
