"""What a supervisor restarts, for how often, and how it ends."""

import os
import signal
import subprocess
import sys
import time

import pytest

from realm_jax import supervisor
from realm_jax.exit_codes import ExitCode
from realm_jax.supervisor import Supervisor

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
from realm_jax.supervisor import Supervisor
sys.exit(Supervisor([sys.executable, "-S", "-c", sys.argv[1]]).run())
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
  """`run(work, max_restarts=…)`: the exit code, and how often it was started.

  The supervised program is Python, and knows its `life`, from 1.
  """
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(supervisor, "_MAX_PAUSE_SECONDS", 0.01)
  numbers = (signal.SIGTERM, signal.SIGINT)
  handlers = [signal.getsignal(number) for number in numbers]

  def run(work, max_restarts=3, folder=None):
    command = [*_PYTHON, _WORK.format(work)]
    code = Supervisor(command, folder=folder).run(max_restarts)
    return code, len((tmp_path / "lives").read_text().split())

  yield run
  for number, handler in zip(numbers, handlers, strict=True):
    signal.signal(number, handler)


@pytest.mark.parametrize(
  "end",
  [
    "sys.exit(1)",
    f"sys.exit({int(ExitCode.STORE_OUTAGE)})",
    f"sys.exit({int(ExitCode.LOST_PROCESS)})",
    "os.kill(os.getpid(), 9)",
    "os.kill(os.getpid(), 11)",
  ],
)
def test_what_may_succeed_the_next_time_is_restarted(run, end):
  assert run(f"if life < 3: {end}") == (0, 3)


@pytest.mark.parametrize(
  "code", [0, int(ExitCode.USER_ERROR), int(ExitCode.LOST_ROLE)]
)
def test_what_is_done_or_would_fail_again_is_not(run, code):
  assert run(f"sys.exit({code})") == (code, 1)


def test_it_gives_up_with_the_last_code(run, capfd):
  assert run("sys.exit(10 + life)", max_restarts=2) == (13, 3)
  said = capfd.readouterr().err
  assert "ended with code 12; restarting it in" in said
  assert run("os.kill(os.getpid(), 9)", max_restarts=0) == (137, 4)


def test_the_count_begins_anew_after_each_new_checkpoint(run):
  # Lives 2 and 4 end after the checkpoints 10 and 20.
  steps = {2: "10", 4: "20"}
  work = f"life in {steps} and os.makedirs('at/' + {steps}[life]); sys.exit(1)"
  assert run(work, max_restarts=2, folder="at") == (1, 6)


@pytest.mark.parametrize(
  ("command", "folder"),
  [
    (
      ["-m", "train", "--model_dir=a", "--gin.MODEL_DIR='gs://b/c'"],
      "gs://b/c",
    ),
    (["--model_dir", "runs/a", "--model_directory=b"], "runs/a"),
  ],
)
def test_a_command_names_where_its_checkpoints_are(command, folder):
  found = supervisor.progress_folder(command, "checkpoints")
  assert found == f"{folder}/checkpoints"
  assert supervisor.progress_folder(["--gin_file=a"], "checkpoints") is None


@pytest.fixture
def supervised(project_dir):
  """`supervised(program)`: a supervisor, and the process it has started."""
  started = []

  def start(handle=""):
    program = "import os, signal, sys\n" + _WAITS.format(handle or "0")
    process = subprocess.Popen(
      [sys.executable, "-S", "-c", _SUPERVISED, program],
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("code", [0, 3])
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


def test_it_needs_neither_jax_nor_tensorflow():
  program = "import sys; import realm_jax.supervisor; print(*sys.modules)"
  done = subprocess.run(
    [sys.executable, "-c", program], capture_output=True, text=True, check=True
  )
  assert not {"jax", "tensorflow", "gin", "numpy", "absl"} & {
    *done.stdout.split()
  }
