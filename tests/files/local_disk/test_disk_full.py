"""A full disk is named, with what to do; other errors pass."""

import errno
import os

import pytest

from realm_jax.files.local_disk.disk_full import (
  DiskFullError,
  explain_full_disk,
)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_and_a_full_quota_are_explained(code):
  said = r"disk of /disk/run is full \(.*\), so /disk/run .*: keep fewer"
  with (
    pytest.raises(DiskFullError, match=said),
    explain_full_disk("/disk/run", advice="keep fewer"),
  ):
    raise OSError(code, os.strerror(code))


def test_other_errors_pass():
  with pytest.raises(PermissionError), explain_full_disk("/disk/run"):
    raise PermissionError(errno.EACCES, "denied")
