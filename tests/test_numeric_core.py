"""The numeric core runs where TensorFlow, seqio, ScaNN and gin do not exist."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_the_core_imports_and_trains_without_the_other_libraries(
  project_dir: Path, command_environment: dict[str, str]
):
  done = subprocess.run(
    [sys.executable, "-m", "tests.numeric_core_child"],
    cwd=project_dir,
    env=command_environment,
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert done.returncode == 0, done.stderr
  assert "trained without" in done.stdout
