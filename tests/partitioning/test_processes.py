"""Two real processes agree on decisions, and notice when one is missing."""

import json
import sys

import pytest

from harness.jobs import free_port
from realm_jax.errors import ExitCode

pytestmark = pytest.mark.slow


def _command(address, index, *, timeout_seconds):
  command = [sys.executable, "-m", "tests.partitioning.processes_child"]
  return [*command, address, str(index), str(timeout_seconds)]


def test_all_read_what_process_0_decides(command_server, tmp_path):
  address = f"localhost:{free_port()}"
  first, second = (
    _command(address, index, timeout_seconds=60) for index in range(2)
  )
  output = tmp_path / "second"
  with output.open("w") as out, (tmp_path / "errors").open("w") as errors:
    other = command_server.start(second, stdout=out, stderr=errors)
  try:
    done = command_server.run(first, timeout=60.0)
    codes = done.returncode, other.wait(60.0)
  finally:
    other.kill()
  lines = [done.stdout.splitlines(), output.read_text().splitlines()]
  for seen in (json.loads(line) for line, _ in lines):
    assert seen["sums"] == list(range(0, 150, 3))
    # An error of one is an error of all. Directories may differ.
    *files, different = seen["errors"]
    assert files == ["no space", "process 1: no space"]
    assert different.startswith("Config.batch_size is 16 in process 1")
    assert seen["stopped"] == [False, True]
    # Old decisions do not pile up.
    assert seen["keys"] < 20
  # In the end they have lost step, and process 1 learns that process 0 fails.
  assert codes == (2, 2)
  assert "out of step: ['of process 0', 'of process 1']" in lines[0][1]
  assert "process 0 has failed" in lines[1][1]


def test_a_process_too_few_is_said(command_server):
  command = _command(f"localhost:{free_port()}", 0, timeout_seconds=2)
  done = command_server.run(command, timeout=60.0)
  assert done.returncode == ExitCode.LOST_PROCESS
  message = "not all 2 processes started within 2 s; start one"
  assert done.stderr.splitlines()[-1].startswith(message)
