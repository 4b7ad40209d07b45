"""One trainer for a MODEL_DIR, whatever happened to the one before."""

import os
import signal
import subprocess
import sys

import pytest

from realm_jax.training.run_lock import RunLockError, run_lock

_HOLD = """
import sys, time
from realm_jax.training.run_lock import run_lock
with run_lock(sys.argv[1]):
  print("held", flush=True)
  time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path, command_environment):
  """Another process that holds `tmp_path`."""
  with subprocess.Popen(
    [sys.executable, "-c", _HOLD, str(tmp_path)],
    stdout=subprocess.PIPE,
    text=True,
    env=command_environment,
  ) as process:
    try:
      assert process.stdout.readline() == "held\n"
      yield process
    finally:
      process.kill()


def test_a_second_process_is_refused_until_the_first_is_killed(
  holder, tmp_path
):
  with (
    pytest.raises(RunLockError, match=f"process {holder.pid} on") as error,
    run_lock(tmp_path),
  ):
    pass
  assert "another MODEL_DIR" in str(error.value)
  # The refused one did not disturb the first.
  with pytest.raises(RunLockError), run_lock(tmp_path):
    pass
  os.kill(holder.pid, signal.SIGKILL)
  holder.wait()
  with run_lock(tmp_path):
    pass


def test_it_is_free_after_the_block(tmp_path):
  model_dir = tmp_path / "not" / "there" / "yet"
  for _ in range(2):
    with run_lock(model_dir):
      assert model_dir.is_dir()


def test_it_is_free_after_an_error(tmp_path):
  with pytest.raises(ZeroDivisionError), run_lock(tmp_path):
    _ = 1 / 0
  with run_lock(tmp_path):
    pass
