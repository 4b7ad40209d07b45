"""How a job's command ends in a container."""

import signal
import subprocess
import sys

import pytest

_ENDS = "import signal, sys, time\n{}\nprint('ready', flush=True)\n{}"
_SAVES = "signal.signal(signal.SIGTERM, lambda *_: sys.exit({}))"


@pytest.fixture
def run(project_dir):
  """`run(program, *signals)`: exit code of a pod with this program."""

  def run(handle: str, then: str, *numbers: int) -> int:
    program = _ENDS.format(handle, then)
    with subprocess.Popen(
      # Without site, Python starts in a moment.
      [sys.executable, "-S", "-m", "launch.pod", "-Sc", program],
      cwd=project_dir,
      stdout=subprocess.PIPE,
      text=True,
    ) as pod:
      assert pod.stdout is not None
      assert pod.stdout.readline() == "ready\n"
      for number in numbers:
        pod.send_signal(number)
      return pod.wait(60)

  return run


@pytest.mark.parametrize("code", [0, 2])
def test_the_exit_code_is_the_commands(run, code):
  assert run("", f"sys.exit({code})") == code


def test_a_trainer_that_was_preempted_has_not_succeeded(run):
  assert run(_SAVES.format(0), "time.sleep(60)", signal.SIGTERM) == 143


def test_an_error_while_stopping_stays_an_error(run):
  assert run(_SAVES.format(5), "time.sleep(60)", signal.SIGTERM) == 5


def test_a_command_without_a_handler_ends_by_the_signal(run):
  assert run("", "time.sleep(60)", signal.SIGTERM) == 143


def test_a_crash_is_a_failure(run):
  assert run("", "import os; os.kill(os.getpid(), 11)") == 139
