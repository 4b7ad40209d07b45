"""Files and names on a disk and in a bucket, which may be of no use."""

import bz2
import gzip
import lzma
import tempfile

import numpy as np
import pytest
import zstandard
from etils import epath

from harness.object_store import StoreFault
from realm_jax.errors import RealmError
from realm_jax.storage.access import (
  StoreAccessError,
  require_readable,
  require_writable,
)
from realm_jax.storage.atomic import atomic_file
from realm_jax.storage.json_files import json_lines, write_json
from realm_jax.storage.line_files import IndexedLines, lines_of
from realm_jax.storage.paths import read_bytes, upload_directory, version_of


@pytest.fixture(params=["disk", "store"])
def folder(request, tmp_path, monkeypatch) -> epath.Path:
  """A directory that is not there yet; temporary files are in `tmp_path`."""
  if request.param == "disk":
    return epath.Path(tmp_path / "folder")
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  store = request.getfixturevalue("object_store")
  return epath.Path(store.path(f"files/{tmp_path.name}"))


def test_a_version_changes_whenever_a_file_is_written(folder):
  path = folder / "file"
  assert version_of(path) is None
  folder.mkdir(parents=True)
  path.write_text("one")
  first = version_of(path)
  assert path.read_text() == "one"
  assert first is not None and version_of(path) == first
  path.unlink()
  path.write_text("two")
  assert version_of(path) not in (None, first)


def test_a_file_is_read_with_one_request_that_is_repeated(object_store):
  path = object_store.path("tree/sub/b")
  object_store.write("tree/sub/b", b"text")
  with object_store.counted() as requests:
    assert read_bytes(path) == b"text"
  assert len(requests) == 1
  object_store.inject(StoreFault("hang", "^GET .*sub/b"))
  assert read_bytes(path) == b"text"
  assert object_store.happened() == [1]
  with pytest.raises(FileNotFoundError):
    read_bytes(object_store.path("tree/sub"))


@pytest.mark.parametrize(
  ("suffix", "compress"),
  [
    ("", bytes),
    (".gz", gzip.compress),
    (".bz2", bz2.compress),
    (".xz", lzma.compress),
    (".zst", zstandard.compress),
  ],
)
def test_lines_are_the_same_however_they_are_compressed(
  suffix, compress, tmp_path
):
  rng = np.random.default_rng(0)
  lines = [b"%b\n" % rng.bytes(99).hex().encode() for _ in range(2000)]
  lines[5:7] = b"\n", b"a\rb\r\n"
  path = tmp_path / f"file{suffix}"
  path.write_bytes(compress(b"".join(lines)) + compress(b"no end"))
  assert [*lines_of(path)] == [*lines, b"no end"]
  path.write_bytes(compress(b"".join(lines))[:-9])
  if suffix:
    with pytest.raises(RealmError, match=rf"file\{suffix} cannot be decompr"):
      list(lines_of(path))


def test_lines_are_read_in_any_order_from_their_places(tmp_path):
  path = tmp_path / "file"
  lines = [b"one\r\n", b"\r\n", b" \n", "é\n".encode(), b"last"]
  path.write_bytes(b"".join(lines))
  indexed = IndexedLines(path)
  assert [indexed[i] for i in range(len(indexed))] == lines
  path.write_bytes(b"".join(lines[:2]))
  assert len(IndexedLines(path)) == 1


def test_the_file_that_makes_a_target_valid_is_uploaded_last(
  object_store, tmp_path
):
  (tmp_path / "sub").mkdir()
  for name in ("a.json", "b", "sub/c"):
    (tmp_path / name).write_text(name)
  target = object_store.path("uploaded_last")
  object_store.inject(StoreFault("refuse", "^POST /upload", status=403))
  with pytest.raises(OSError, match="Forbidden"):
    upload_directory(tmp_path, target, last="a.json")
  assert "uploaded_last/a.json" not in object_store.names("uploaded_last")
  upload_directory(tmp_path, target, last="a.json")
  for name in ("a.json", "b", "sub/c"):
    assert object_store.read(f"uploaded_last/{name}") == name.encode()


@pytest.mark.parametrize("require", [require_readable, require_writable])
def test_a_bucket_that_is_not_there(object_store, require):
  with pytest.raises(StoreAccessError, match="buckets create gs://elsewhere"):
    require("gs://elsewhere/run")


@pytest.mark.parametrize(
  ("method", "message"),
  [
    ("GET", r"cannot be read: .*roles/stor"),
    ("POST", "cannot be written: .*refuses"),
    ("DELETE", "cannot be removed: .*refuses"),
  ],
)
def test_a_bucket_that_may_not_be_used(object_store, method, message):
  object_store.inject(StoreFault("refuse", f"^{method}", status=403, times=9))
  with pytest.raises(StoreAccessError, match=message):
    require_writable(object_store.path("access/run"))
  object_store.inject()
  for name in object_store.names("access/run"):
    object_store.remove(name)


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
