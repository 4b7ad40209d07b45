"""What a supervisor restarts, for how often, and how it ends."""

import os
import signal
import subprocess
import sys
import time

import pytest

from realm_jax import supervisor
from realm_jax.errors import ExitCode

# Without site, Python starts in a moment.
_PYTHON = (sys.executable, "-S", "-c")
_WORK = """
import os, sys
with open("lives", "a") as file:
  file.write("life\\n")
life = len(open("lives").readlines())
{}
"""
_WAITS = "import time; {}; print(os.getpid(), flush=True); time.sleep(60)"
_SUPERVISED = """
import sys
from realm_jax import supervisor
work, max_restarts, folder, supervisor._MAX_PAUSE_SECONDS = {}
command = [sys.executable, "-S", "-c", work]
started = supervisor.Supervisor(command, folder=folder)
sys.exit(started.run(max_restarts))
"""


@pytest.fixture
def run(tmp_path, project_dir):
  """`run(work, max_restarts=…)`: exit code, number of starts, what was said.

  The supervised program is Python, and knows its `life`, from 1.
  """

  def run(work, max_restarts=3, folder=None):
    given = (_WORK.format(work), max_restarts, folder, 0.01)
    done = subprocess.run(
      [*_PYTHON, _SUPERVISED.format(repr(given))],
      cwd=tmp_path,
      env={**os.environ, "PYTHONPATH": str(project_dir)},
      stderr=subprocess.PIPE,
      text=True,
    )
    lives = len((tmp_path / "lives").read_text().split())
    return done.returncode, lives, done.stderr

  return run


def test_what_may_succeed_the_next_time_is_restarted(run):
  codes = [1, int(ExitCode.STORE_OUTAGE), int(ExitCode.LOST_PROCESS)]
  work = f"""
if life == 1: os.kill(os.getpid(), 9)
if life < 5: sys.exit({codes}[life - 2])
"""
  assert run(work, max_restarts=4)[:2] == (0, 5)


@pytest.mark.parametrize(
  "code", [0, int(ExitCode.USER_ERROR), int(ExitCode.LOST_ROLE), 128 + 13]
)
def test_what_is_done_or_would_fail_again_is_not(run, code):
  assert run(f"sys.exit({code})")[:2] == (code, 1)


def test_it_gives_up_with_the_last_code(run):
  code, lives, said = run("sys.exit(10 + life)", max_restarts=2)
  assert (code, lives) == (13, 3)
  assert "ended with code 12; restarting it" in said


def test_the_count_begins_anew_after_each_new_checkpoint(run):
  # Lives 2 and 4 end after the checkpoints 10 and 20.
  steps = {2: "10", 4: "20"}
  work = f"life in {steps} and os.makedirs('at/' + {steps}[life]); sys.exit(1)"
  assert run(work, max_restarts=2, folder="at")[:2] == (1, 6)


def test_a_command_names_where_its_checkpoints_are():
  for command, folder in (
    (["--model_dir=a", "--gin.MODEL_DIR='gs://b/c'"], "gs://b/c/checkpoints"),
    (["--model_dir", "runs/a", "--gin_file=b"], "runs/a/checkpoints"),
    (["--gin_file=b"], None),
  ):
    assert supervisor.progress_folder(command, "checkpoints") == folder


@pytest.fixture
def supervised(project_dir):
  """`supervised(program)`: a supervisor, and the process it has started."""
  started = []

  def start(handle=""):
    program = "import os, signal, sys\n" + _WAITS.format(handle or "0")
    process = subprocess.Popen(
      [*_PYTHON, _SUPERVISED.format(repr((program, 10, None, 60.0)))],
      cwd=project_dir,
      stdout=subprocess.PIPE,
      text=True,
    )
    started.append(process)
    return process, int(process.stdout.readline())

  yield start
  for process in started:
    process.kill()
    process.wait()
    process.stdout.close()


def _has_ended(process: int) -> bool:
  for _ in range(200):
    try:
      os.kill(process, 0)
    except ProcessLookupError:
      return True
    time.sleep(0.05)
  return False


@pytest.mark.parametrize(
  ("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 3)]
)
def test_a_stop_is_passed_on_and_nothing_is_restarted(supervised, number, code):
  process, child = supervised(
    f"signal.signal({int(number)}, lambda *_: sys.exit({code}))"
  )
  process.send_signal(number)
  assert process.wait(60) == code
  assert _has_ended(child)


def test_a_stop_between_two_lives_ends_it_at_once(supervised):
  process, child = supervised()
  for _ in range(3):  # Until the pause is long.
    os.kill(child, signal.SIGKILL)
    child = int(process.stdout.readline())
  os.kill(child, signal.SIGKILL)
  time.sleep(0.5)
  process.terminate()
  assert process.wait(5) == 128 + signal.SIGTERM


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can do it")
def test_the_command_dies_with_its_supervisor(supervised):
  process, child = supervised()
  process.kill()
  process.wait()
  assert _has_ended(child)
