"""Commands print their own lines, and none of the libraries they use."""

import contextlib
import subprocess
import sys

import pytest

from realm_jax.checkpoints.manager import CheckpointStore

# A command that writes a checkpoint and nothing else.
_SAVE = """
import numpy as np
from realm_jax import configuration
from realm_jax.checkpoints.manager import CheckpointStore

def main(argv):
  store = CheckpointStore(argv[1], read_only=False)
  store.hurry()
  weights = {f"layer_{i}": np.random.normal(size=(64, 64)) for i in range(16)}
  store.save(0, {"retriever": weights, "optimizer": weights})
  store.wait()

configuration.run(main)
"""
_MAX_FILE_KIB = 4


@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_written_is_reported_in_a_line(
  tmp_path, project_dir, command_environment
):
  done = subprocess.run(
    [
      *("bash", "-c", f'ulimit -f {_MAX_FILE_KIB}; exec "$@"', "bash"),
      *(sys.executable, "-c", _SAVE, str(tmp_path)),
    ],
    cwd=project_dir,
    # Of modules that it compiles, only the beginning would be written.
    env=command_environment | {"PYTHONDONTWRITEBYTECODE": "1"},
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 2, done.stderr
  # Each try is said, and then that there will be no other.
  lines = done.stderr.splitlines()
  assert all("File too large" in line for line in lines), done.stderr
  assert lines[-1].startswith("-c: ")
  assert len(lines) == 3
  with contextlib.closing(CheckpointStore(tmp_path)) as store:
    assert store.steps() == []
