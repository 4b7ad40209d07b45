"""Full disks, temporary directories that go, and arrays in files."""

import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from realm_jax.storage.arrays import create_mapped_array, drop_pages, save_array
from realm_jax.storage.local_disk import (
  DiskFullError,
  ScratchDirectory,
  explain_full_disk,
)
from tests.full_disk import full_disk


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_and_a_full_quota_are_explained(code):
  said = r"disk of /disk/run is full \(.*\), so /disk/run .*: keep fewer"
  with (
    pytest.raises(DiskFullError, match=said),
    explain_full_disk("/disk/run", advice="keep fewer"),
  ):
    raise OSError(code, os.strerror(code))
  with pytest.raises(PermissionError), explain_full_disk("/disk/run"):
    raise PermissionError(errno.EACCES, "denied")


_KILLED = """
import os, signal
from realm_jax.storage.local_disk import ScratchDirectory
scratch = ScratchDirectory()
(scratch.path / "file").write_text("x")
print(scratch.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_loses_its_directory_and_a_living_one_does_not(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  monkeypatch.setenv("TMPDIR", str(tmp_path))
  living = ScratchDirectory()
  done = subprocess.run(
    [sys.executable, "-c", _KILLED],
    capture_output=True,
    text=True,
  )
  assert done.returncode == -signal.SIGKILL, done.stderr
  left = Path(done.stdout.strip())
  assert left.parents[1] == living.path.parents[1]
  assert (left / "file").exists()
  with ScratchDirectory():
    assert not left.parent.exists()
    assert living.path.exists()


def test_a_mapped_array_has_disk_space_before_it_is_written(tmp_path):
  path = tmp_path / "a.npy"
  array = create_mapped_array(path, np.float32, (1000, 500))
  # A hole would have no blocks, and writing to it might find none.
  assert path.stat().st_blocks * 512 >= array.nbytes
  array[:] = 3
  array.flush()
  np.testing.assert_array_equal(np.load(path), array)


@pytest.mark.parametrize(
  "write",
  [
    lambda path: save_array(path, np.zeros(5000, np.float32)),
    lambda path: create_mapped_array(path, np.float32, (5000,)),
  ],
)
def test_a_full_disk_is_an_error_of_the_system(tmp_path, write):
  with full_disk(4096), pytest.raises(OSError) as caught:
    write(tmp_path / "a.npy")
  assert caught.value.errno == errno.EFBIG


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_a_mapped_file_reads_as_before(tmp_path, mode):
  np.save(tmp_path / "a.npy", np.arange(4096, dtype=np.float32))
  array = np.load(tmp_path / "a.npy", mmap_mode=mode)
  expected = np.arange(4096)
  if mode != "r":
    array[3] = expected[3] = -1
  drop_pages(array[:2048].view(np.int32).view(np.float32))
  np.testing.assert_array_equal(array, expected)


def test_arrays_outside_mapped_files_are_left_alone():
  array = np.arange(10)
  array.flags.writeable = False
  drop_pages(array[2:5])
  drop_pages(np.frombuffer(b"12345678", np.uint8))
  np.testing.assert_array_equal(array, np.arange(10))
