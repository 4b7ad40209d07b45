"""Files of a manifest, on a disk and copied from an object store."""

import hashlib
import os
from unittest import mock

import pytest

from harness.object_store import StoreFault
from realm_jax.storage import staging
from realm_jax.storage.local_disk import DiskFullError
from realm_jax.storage.staging import (
  DamagedFileError,
  FileRecord,
  StagedFiles,
  record_files,
)

_BYTES = 1000


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch, object_store):
  """The cache of this host, in place of the one that the store brings."""
  monkeypatch.setenv(staging.DIRECTORY_VARIABLE, str(tmp_path / "cache"))
  return tmp_path / "cache"


def _content(name):
  return (name * _BYTES).encode()[:_BYTES]


def _record(name):
  return FileRecord(name, _BYTES, hashlib.sha256(_content(name)).hexdigest())


@pytest.fixture
def far(object_store, tmp_path):
  """A folder of the store with files a to e."""
  for name in "abcde":
    object_store.write(f"staging/{tmp_path.name}/{name}", _content(name))
  return object_store.path(f"staging/{tmp_path.name}")


def _staged(far):
  return StagedFiles(far, map(_record, "abcde"))


def _copies(cache):
  return {path.name for path in (cache / "copies").iterdir()}


def _sums(names):
  return {_record(name).sha256 for name in names}


def test_local_files_are_read_where_they_are(tmp_path):
  (tmp_path / "scann").mkdir()
  for name in ("a", "scann/b"):
    (tmp_path / name).write_bytes(b"content")
  files = StagedFiles(tmp_path, record_files(tmp_path, ["a", "scann/b"]))
  assert files.paths("scann/") == ["scann/b"]
  assert files.get(["a", "scann/b"]) == tmp_path
  (tmp_path / "a").write_bytes(b"changed")
  # What was verified is not read again, unless it is asked for.
  files.get(["a"])
  with pytest.raises(DamagedFileError, match="does not match its checksum"):
    files.get(["a"], again=True)
  (tmp_path / "a").write_bytes(b"cut")
  with pytest.raises(DamagedFileError, match="has 3 bytes and not 7"):
    files.verify(checksums=False)
  (tmp_path / "a").unlink()
  with pytest.raises(DamagedFileError, match="is missing"):
    files.verify(checksums=False)
  with pytest.raises(DamagedFileError, match="is not in its manifest"):
    files.get(["c"])


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "a//x", "", "./x"])
def test_a_manifest_names_no_file_outside_of_its_folder(name):
  with pytest.raises(DamagedFileError, match="no path below its folder"):
    FileRecord(name, 1, "00")


def test_a_file_is_copied_once_for_all(far, cache, object_store):
  first, again = _staged(far), _staged(far)
  with object_store.counted() as requests:
    assert first.get("abc") != again.get("abc")
  assert (again.root / "b").read_bytes() == _content("b")
  assert len([r for r in requests if "alt=media" in r]) == 3
  assert _copies(cache) == _sums("abc")


def test_what_was_not_used_for_longest_goes_and_what_is_in_use_stays(
  far, cache, monkeypatch, caplog
):
  monkeypatch.setenv(staging.LIMIT_VARIABLE, str(3 * _BYTES / (1 << 30)))
  for name in "abca":
    _staged(far).get(name)
  kept = _staged(far)
  kept.get("d")
  assert _copies(cache) == _sums("acd")
  others = [_staged(far) for _ in "be"]
  for name, other in zip("be", others, strict=True):
    other.get(name)
  assert _copies(cache) == _sums("bde")
  last = _staged(far)
  last.get("a")
  assert _copies(cache) == _sums("abde")
  assert "all in use" in caplog.text
  assert (kept.root / "d").read_bytes() == _content("d")


def test_a_bad_copy_is_made_again_and_two_are_damage(far, cache, object_store):
  object_store.inject(StoreFault("cut", r"^GET .*/a\?"))
  assert _staged(far).get("a").joinpath("a").read_bytes() == _content("a")
  name = far.partition("bucket/")[2]
  object_store.write(f"{name}/b", b"x" * _BYTES)
  with pytest.raises(DamagedFileError, match="/b does not match"):
    _staged(far).get("b")
  # Where it is, it is read without a copy.
  StagedFiles(far, [_record("a")]).verify()
  with pytest.raises(DamagedFileError, match="/b does not match its checksum"):
    _staged(far).verify()
  object_store.remove(f"{name}/c")
  with pytest.raises(DamagedFileError, match="/c is missing"):
    _staged(far).verify(checksums=False)
  with pytest.raises(DamagedFileError, match="/c is missing"):
    _staged(far).get("c")
  assert _copies(cache) == _sums("a")
  # A copy that was cut since is not used.
  (copy,) = (cache / "copies").iterdir()
  os.truncate(copy, 1)
  assert _staged(far).get("a").joinpath("a").read_bytes() == _content("a")


def test_what_does_not_fit_is_refused_before_it_is_copied(far, monkeypatch):
  usage = mock.Mock(return_value=mock.Mock(free=10))
  monkeypatch.setattr(staging.shutil, "disk_usage", usage)
  with pytest.raises(DiskFullError, match="set REALM_JAX_CACHE_DIR"):
    _staged(far).get("a")
