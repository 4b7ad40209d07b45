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

_PATIENCE_SECONDS = 60.0


@pytest.fixture
def start(command_server, tmp_path):
  """`start(scenario, count)`: exit codes, and what each process saw."""
  started = []

  def run(scenario, count=2):
    address = f"localhost:{free_port()}"
    module = "tests.partitioning.processes_child"
    for index in range(count):
      command = [sys.executable, "-m", module, address, str(index), scenario]
      with (
        (tmp_path / f"{index}.out").open("w") as out,
        (tmp_path / f"{index}.err").open("w") as errors,
      ):
        child = command_server.start(command, stdout=out, stderr=errors)
      started.append(child)
    codes = [child.wait(_PATIENCE_SECONDS) for child in started]
    if scenario == "alone":
      return codes, [path.read_text() for path in tmp_path.glob("*.err")]
    outputs = [
      (tmp_path / f"{index}.out").read_text() for index in range(count)
    ]
    return codes, [json.loads(seen.splitlines()[-1]) for seen in outputs]

  yield run
  for child in started:
    child.kill()


def test_all_read_what_process_0_decides(start):
  codes, seen = start("agree")
  assert codes == [0, 0]
  for index, one in enumerate(seen):
    assert one["sums"] == list(range(0, 900, 3))
    assert one["first"] == "of process 0"
    assert one["own"] == index
    # An error of one is an error of all.
    assert one["errors"] == ["no such file", "process 1: no such file"]
    # Directories may differ.
    assert one["different"].startswith("Config.batch_size is 16 in process 1")
    assert one["stopped"] == [False, True]
    # A second run in the same processes has decisions of its own.
    assert one["again"] == 1
    # Old decisions do not pile up.
    assert one["keys"] < 20


def test_processes_that_have_lost_step_are_stopped(start):
  codes, seen = start("lose step")
  assert codes == [2, 2]
  assert "out of step: ['of process 0', 'of process 1']" in seen[0]["error"]
  # Process 1 learns that process 0 has failed.
  assert "process 0 has failed" in seen[1]["error"]


@pytest.mark.slow
def test_a_process_that_is_killed_ends_the_others(start):
  (survivor, killed), seen = start("lose a process")
  assert killed == -signal.SIGKILL
  # It waited for a decision, and made none.
  assert survivor
  assert seen == [{}, {}]


def test_a_process_too_few_is_said(start):
  codes, seen = start("alone", count=1)
  assert codes == [ExitCode.LOST_PROCESS]
  (line,) = seen[0].splitlines()
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
