"""Temporary directories: removed at the end, however the process ends."""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from realm_jax.files.local_disk.scratch import ScratchDirectory

_KILLED = """
import os, signal
from realm_jax.files.local_disk.scratch import ScratchDirectory
scratch = ScratchDirectory()
(scratch.path / "file").write_text("x")
print(scratch.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  monkeypatch.setenv("TMPDIR", str(tmp_path))
  return tmp_path


def test_that_of_a_killed_process_goes_and_that_of_a_living_one_stays():
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
