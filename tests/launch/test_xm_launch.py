"""The command, and XManager with real processes; no container, no cluster."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.slow

_RUN = """
import asyncio, json, sys
from absl import flags
from launch.local_jobs import run_locally
from launch.jobs import Job, Schedule

jobs = [Job(name, tuple(arguments), Schedule[schedule], environment,
            processes=processes)
        for name, arguments, schedule, environment, processes
        in json.loads(sys.argv.pop())]
flags.FLAGS(sys.argv)
asyncio.run(run_locally("test", jobs, grace_seconds=60))
"""
# Follows until it is told to stop, as the index builder does.
_FOLLOWS = """
import pathlib, signal, sys, time
def stop(*_):
  pathlib.Path("stopped").touch()
  sys.exit(0)
signal.signal(signal.SIGTERM, stop)
pathlib.Path("follows").touch()
time.sleep(60)
"""
# Trains until the other job runs, and then for a moment.
_TRAINS = """
import pathlib, sys, time
while not pathlib.Path("follows").exists():
  time.sleep(0.02)
print("trained it's all", *sys.argv[2:])
"""


@pytest.fixture
def environment(
  tmp_path, command_environment: dict[str, str]
) -> dict[str, str]:
  # XManager keeps its own records under the home folder.
  return {**command_environment, "HOME": str(tmp_path)}


def _launch(tmp_path, environment, jobs: list[tuple]) -> subprocess.Popen:
  return subprocess.Popen(
    [sys.executable, "-c", _RUN, json.dumps(jobs)],
    cwd=tmp_path,
    env=environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )


def _output(process: subprocess.Popen, code: int) -> str:
  output, _ = process.communicate(timeout=120)
  assert process.returncode == code, output
  return output


def _python(
  name: str, program: str, *, processes: int = 1, **variables: str
) -> tuple:
  schedules = {"trainer": "RUN", "builder": "BESIDE", "evaluator": "AFTER"}
  return (name, ["-Sc", program], schedules[name], variables, processes)


def test_processes_run_together_and_the_evaluator_after_them(
  tmp_path, environment
):
  evaluate = "import os; print('evaluated', os.environ['WHERE'])"
  jobs = [
    _python("trainer", _TRAINS, processes=2),
    _python("builder", _FOLLOWS),
    _python("evaluator", evaluate, WHERE="here"),
  ]
  output = _output(_launch(tmp_path, environment, jobs), 0)
  for index in range(2):
    line = f"trained it's all --num_processes=2 --process_id={index}\n"
    assert f"[trainer-{index}] {line}" in output
    assert f"[trainer-{index}] ended with exit code 0\n" in output
  assert (tmp_path / "stopped").exists()
  assert "[evaluator] evaluated here" in output
  assert output.index("[builder] ended") < output.index("[evaluator]")
  # XManager would say so at its exit, although all have ended.
  assert "Terminating" not in output


def test_a_process_that_fails_is_named_after_its_last_words(
  tmp_path, environment
):
  program = f"""
import sys
if sys.argv[-1] == "--process_id=1":
{_FOLLOWS.replace(chr(10), chr(10) + "  ")}
{_TRAINS}
print("x" * 100000, "out of memory")
raise SystemExit(7)
"""
  jobs = [_python("trainer", program, processes=2)]
  output = _output(_launch(tmp_path, environment, jobs), 7)
  assert (tmp_path / "stopped").exists()
  said = "x out of memory\n[trainer-0] ended with exit code 7\n"
  assert said in output
  assert "trainer-0 failed with exit code 7; stopping trainer-1\n" in output


def test_a_signal_to_the_launcher_stops_every_job(tmp_path, environment):
  process = _launch(tmp_path, environment, [_python("trainer", _FOLLOWS)])
  deadline = time.monotonic() + 60
  while not (tmp_path / "follows").exists() and time.monotonic() < deadline:
    time.sleep(0.05)
  os.kill(process.pid, signal.SIGINT)
  _output(process, 128 + signal.SIGINT)
  assert (tmp_path / "stopped").exists()
