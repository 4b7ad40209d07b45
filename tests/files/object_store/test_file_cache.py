"""Copies of files on an object store: whole, shared, bounded in bytes."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from etils import epath

from benchmarks.runs.object_store import StoreFault
from realm_jax.files.object_store.file_cache import (
  DamagedCopyError,
  FileCache,
  RemoteFile,
)

_BYTES = 1000


@pytest.fixture
def far(object_store, tmp_path):
  """`far(name)`: a file of `_BYTES` in the store, others by other names."""

  def make(name: str) -> RemoteFile:
    content = (name * _BYTES).encode()[:_BYTES]
    path = f"file_cache/{tmp_path.name}/{name}"
    object_store.write(path, content)
    checksum = hashlib.sha256(content).hexdigest()
    return RemoteFile(epath.Path(object_store.path(path)), _BYTES, checksum)

  return make


def cache(tmp_path: Path, *, files: int = 100) -> FileCache:
  """A cache as another process would open it, with room for some files."""
  return FileCache(tmp_path / "cache", limit_bytes=files * _BYTES)


def names(tmp_path: Path) -> set[str]:
  found = (path.name for path in (tmp_path / "cache").iterdir())
  return {name for name in found if name not in (".lock", ".holders")}


def let_go(cache: FileCache) -> None:
  """Does what the end of its process does to a cache."""
  os.close(cache._holder)


def test_a_file_is_copied_once(far, tmp_path, object_store):
  files = [far(name) for name in "abc"]
  with object_store.counted() as requests:
    paths = cache(tmp_path).get(files)
    assert cache(tmp_path).get(files) == paths
  assert [path.read_bytes()[:1] for path in paths] == [b"a", b"b", b"c"]
  assert len([r for r in requests if "alt=media" in r]) == 3


def test_threads_that_want_the_same_copy_it_once(far, tmp_path, object_store):
  file = far("a")
  with object_store.counted() as requests:
    threads = [
      threading.Thread(target=cache(tmp_path).get, args=[[file]])
      for _ in range(4)
    ]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
  assert len([r for r in requests if "alt=media" in r]) == 1
  assert names(tmp_path) == {file.sha256}


def test_what_was_not_used_for_longest_goes_first(far, tmp_path):
  a, b, c, d = map(far, "abcd")
  for file in (a, b, c, a):
    one = cache(tmp_path, files=3)
    one.get([file])
    let_go(one)
  cache(tmp_path, files=3).get([d])
  assert names(tmp_path) == {a.sha256, c.sha256, d.sha256}


def test_what_a_process_uses_stays(far, tmp_path, caplog):
  a, b, c = map(far, "abc")
  user = cache(tmp_path, files=2)
  user.get([a])
  user.get([b])
  other = cache(tmp_path, files=2)
  (path,) = other.get([c])
  assert names(tmp_path) == {a.sha256, b.sha256, c.sha256}
  assert "all in use" in caplog.text
  let_go(user)
  other.get([far("d")])
  assert names(tmp_path) == {c.sha256, far("d").sha256}
  assert path.exists()


_DIE = """
import sys
from pathlib import Path
from etils import epath
from realm_jax.files.object_store.file_cache import FileCache, RemoteFile
folder, path, size, checksum = sys.argv[1:]
file = RemoteFile(epath.Path(path), int(size), checksum)
print("started", flush=True)
FileCache(Path(folder), limit_bytes=10**6).get([file])
"""


def test_what_a_killed_process_left_is_removed(
  far, tmp_path, object_store, command_environment
):
  file, other = far("a"), far("b")
  object_store.inject(StoreFault("hang", r"^GET /download.*/a\?", times=9))
  with subprocess.Popen(
    [
      *(sys.executable, "-c", _DIE, tmp_path / "cache"),
      *(file.path, str(file.bytes), file.sha256),
    ],
    env={
      **command_environment,
      **os.environ,
      "REALM_JAX_REQUEST_TIMEOUT_SECONDS": "600",
    },
  ) as process:
    while not sum(object_store.happened()):
      assert process.poll() is None
    # While it lives, its copy is nobody else's to remove.
    cache(tmp_path).get([other])
    assert f".{file.sha256}.partial" in names(tmp_path)
    process.send_signal(signal.SIGKILL)
  object_store.inject()
  cache(tmp_path).get([other])
  assert names(tmp_path) == {other.sha256}
  assert cache(tmp_path).get([file])[0].read_bytes() == b"a" * _BYTES


def test_a_copy_that_is_bad_is_made_again(far, tmp_path, object_store):
  file = far("a")
  good = object_store.read(file.path.as_posix().partition("bucket/")[2])
  name = file.path.as_posix().partition("bucket/")[2]
  object_store.write(name, b"x" * _BYTES)
  with pytest.raises(DamagedCopyError, match="checksum of its manifest"):
    cache(tmp_path).get([file])
  assert names(tmp_path) == set()
  object_store.write(name, good)
  assert cache(tmp_path).get([file])[0].read_bytes() == good


def test_a_copy_that_was_cut_is_made_again(far, tmp_path):
  file = far("a")
  (path,) = cache(tmp_path).get([file])
  path.write_bytes(b"a")
  assert cache(tmp_path).get([file])[0].read_bytes() == b"a" * _BYTES
