"""Commands print their own lines, and none of the libraries they use."""

import json
import subprocess
import sys

import pytest

from tests import tiny_world

# A command that writes a checkpoint and nothing else.
_SAVE = """
import numpy as np
from realm_jax import configuration
from realm_jax.checkpoints.manager import CheckpointStore

def main(argv):
  store = CheckpointStore(argv[1], read_only=False)
  weights = {f"layer_{i}": np.random.normal(size=(64, 64)) for i in range(16)}
  store.save(0, {"retriever": weights, "optimizer": weights})
  store.wait()

configuration.run(main)
"""
_MAX_FILE_KIB = 4
_SET_BY_TESTS = ("TF_CPP_MIN_LOG_LEVEL", "CUDA_VISIBLE_DEVICES")


@pytest.mark.slow
def test_tensorflow_does_not_report_missing_accelerators(
  tmp_path, project_dir, command_environment
):
  environment = {
    name: value
    for name, value in command_environment.items()
    if name not in _SET_BY_TESTS
  }
  text = tmp_path / "text.jsonl"
  text.write_text(json.dumps({"title": "Ada", "text": "Ada was born."}) + "\n")
  vocabulary = tmp_path / "vocab.txt"
  vocabulary.write_text("\n".join(tiny_world.pieces()))
  done = subprocess.run(
    [
      *(sys.executable, "-m", "realm_jax.build_corpus"),
      f"--input={text}",
      f"--output_dir={tmp_path / 'corpus'}",
      f"--vocab={vocabulary}",
    ],
    cwd=project_dir,
    env=environment,
    capture_output=True,
    text=True,
    check=True,
  )
  # A line of this project has the place of a file in it, as absl logs it.
  lines = [line for line in done.stderr.splitlines() if ".py:" not in line]
  assert lines == []


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
    env=command_environment,
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 2
  (line,) = done.stderr.splitlines()
  assert "File too large" in line
