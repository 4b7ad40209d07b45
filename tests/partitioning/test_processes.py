"""Two real processes agree on decisions, and notice when one is missing."""

import json
import signal
import sys
import threading

import pytest

from benchmarks.runs.jobs import free_port
from realm_jax.exit_codes import ExitCode
from realm_jax.partitioning import processes
from realm_jax.partitioning.agreement import Agreement

pytestmark = pytest.mark.slow


@pytest.fixture
def start(command_server, tmp_path):
  """`start(scenario, count)`: exit codes, and the last line of each."""
  started = []

  def run(scenario, count=2):
    module = "tests.partitioning.processes_child"
    command = [sys.executable, "-m", module, f"localhost:{free_port()}"]
    files = [
      (tmp_path / f"{i}.out", tmp_path / f"{i}.err") for i in range(count)
    ]
    for index, (output, errors) in enumerate(files):
      with output.open("w") as out, errors.open("w") as err:
        child = command_server.start(
          [*command, str(index), scenario], stdout=out, stderr=err
        )
      started.append(child)
    codes = [child.wait(60.0) for child in started]
    texts = [out.read_text() or err.read_text() for out, err in files]
    return codes, [text.splitlines()[-1] for text in texts]

  yield run
  for child in started:
    child.kill()


def test_all_read_what_process_0_decides(start):
  codes, lines = start("agree")
  assert codes == [0, 0]
  for index, one in enumerate(map(json.loads, lines)):
    assert one["sums"] == list(range(0, 900, 3))
    assert one["first"] == "of process 0"
    assert one["own"] == index
    # An error of one is an error of all. Directories may differ.
    *files, different = one["errors"]
    assert files == ["no such file", "process 1: no such file"]
    assert different.startswith("Config.batch_size is 16 in process 1")
    assert one["stopped"] == [False, True]
    # A second run in the same processes has decisions of its own.
    assert one["again"] == 1
    # Old decisions do not pile up.
    assert one["keys"] < 20


def test_processes_that_have_lost_step_are_stopped(start):
  codes, lines = start("lose step")
  assert codes == [2, 2]
  assert "out of step: ['of process 0', 'of process 1']" in lines[0]
  # Process 1 learns that process 0 has failed.
  assert "process 0 has failed" in lines[1]


def test_a_process_that_is_killed_ends_the_others(start):
  (survivor, killed), _ = start("lose a process")
  assert killed == -signal.SIGKILL
  # It waited for a decision, and made none.
  assert survivor


def test_a_process_too_few_is_said(start):
  codes, (line,) = start("alone", count=1)
  assert codes == [ExitCode.LOST_PROCESS]
  assert line.startswith("not all 2 processes started within 2 s; start one")


def test_a_lone_process_needs_no_service():
  agreement = Agreement("loop")
  assert agreement.is_leader
  assert agreement.exchange("sum", 3, sum) == 3
  assert agreement.on_process_0("name", lambda: "alone") == "alone"
  assert agreement.on_all_processes("name", lambda: "alone") == "alone"
  agreement.require_same({"BATCH_SIZE": 8})
  stop = agreement.stop_event(threading.Event())
  assert not stop.is_set()
  stop.set()
  assert stop.is_set()
  processes.require_no_failure()
