"""Full disks, temporary directories that go, and arrays in files."""

import errno
import os
import tempfile

import numpy as np
import pytest

from realm_jax.storage.local_disk import (
  DiskFullError,
  ScratchDirectory,
  create_mapped_array,
  explain_full_disk,
  save_array,
)
from tests.full_disk import full_disk


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_and_a_full_quota_are_explained(code):
  message = r"disk of /disk/run is full \(.*\), so /disk/run .*: keep fewer"
  with (
    pytest.raises(DiskFullError, match=message),
    explain_full_disk("/disk/run", advice="keep fewer"),
  ):
    raise OSError(code, os.strerror(code))


def test_what_a_killed_process_left_goes_and_what_is_used_does_not(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  with ScratchDirectory() as living:
    # The kernel releases the lock of a process that is killed.
    left = living.path.parent / "left"
    left.mkdir()
    (left / "file").touch()
    other = ScratchDirectory()
    assert living.path.exists() and other.path.exists()
    assert not left.exists()
    path = other.path
    del other
    assert not path.exists()
  assert [path.name for path in tmp_path.glob("*/*")] == [".lock"]


@pytest.mark.parametrize("planted", ["link", "open", "file"])
def test_a_folder_that_somebody_else_may_have_made_is_not_used(
  tmp_path, monkeypatch, planted
):
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  expected = tmp_path / f"realm_jax-scratch-{os.getuid()}"
  elsewhere = tmp_path / "elsewhere"
  elsewhere.mkdir(mode=0o700)
  if planted == "link":
    expected.symlink_to(elsewhere)
  elif planted == "open":
    expected.mkdir()
    expected.chmod(0o777)
  else:
    expected.touch()
  with ScratchDirectory() as scratch:
    assert expected not in scratch.path.parents
    assert elsewhere not in scratch.path.resolve().parents
    assert scratch.path.parent.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
  "write",
  [
    lambda path: save_array(path, np.zeros(5000, np.float32)),
    lambda path: create_mapped_array(path, np.float32, (5000,)).flush(),
  ],
)
def test_an_array_has_its_space_or_says_that_the_disk_is_full(tmp_path, write):
  path = tmp_path / "a.npy"
  with full_disk(4096), pytest.raises(OSError) as caught:
    write(path)
  assert caught.value.errno == errno.EFBIG
  write(path)
  np.testing.assert_array_equal(np.load(path), np.zeros(5000))
  # A hole would have no blocks, and writing to it might find none.
  assert path.stat().st_blocks * 512 >= 20_000
