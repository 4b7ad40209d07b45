"""How a job's command ends in a container."""

import signal
import subprocess
import sys

import pytest

_ENDS = "import signal, sys, time\n{}\nprint('ready', flush=True)\n{}"
_SAVES = "signal.signal(signal.SIGTERM, lambda *_: sys.exit({}))"


@pytest.mark.parametrize(
  ("handle", "then", "is_told", "code"),
  [
    ("", "sys.exit(2)", False, 2),
    # A trainer that was preempted has not succeeded; an error stays one.
    (_SAVES.format(0), "time.sleep(60)", True, 143),
    (_SAVES.format(5), "time.sleep(60)", True, 5),
    # Without a handler, the signal ends the command.
    ("", "time.sleep(60)", True, 143),
    ("", "import os; os.kill(os.getpid(), 11)", False, 139),
  ],
)
def test_the_exit_code_tells_how_the_command_ended(
  project_dir, handle, then, is_told, code
):
  with subprocess.Popen(
    # Without site, Python starts in a moment.
    [
      *(sys.executable, "-S", "-m", "launch.pod"),
      *("-Sc", _ENDS.format(handle, then)),
    ],
    cwd=project_dir,
    stdout=subprocess.PIPE,
    text=True,
  ) as pod:
    assert pod.stdout is not None
    assert pod.stdout.readline() == "ready\n"
    if is_told:
      pod.send_signal(signal.SIGTERM)
    assert pod.wait(60) == code
