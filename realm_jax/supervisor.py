"""Restarts a command that failed, which then resumes from its files.

`realm_jax.train` and `realm_jax.build_index` start themselves again as a child
of such a supervisor, unless they get `--max_restarts=0`. It imports neither jax
nor TensorFlow, so that it takes a moment to start and little memory.

A command is restarted after a bug, a signal, and every exit code but those of
`_FINAL`: the same command would fail again, or would fight the process that has
taken its role. Pauses between restarts grow from 1 to 60 seconds. The count of
restarts, and with it the pause, begins anew after each new checkpoint.
"""

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

from realm_jax.errors import ExitCode

# Environment variable of a supervised command: a name of its supervisor, which
# starts a process only after the one before has ended.
VARIABLE = "REALM_JAX_SUPERVISOR"
MAX_RESTARTS = 10
# The last one: nobody reads what it prints, as after `train --help | head`.
_FINAL = (
  *(0, ExitCode.USER_ERROR, ExitCode.LOST_ROLE),
  128 + signal.SIGPIPE,
)
_MAX_PAUSE_SECONDS = 60.0
_POLL_SECONDS = 0.05
_PR_SET_PDEATHSIG = 1


class Supervisor:
  """Runs a command, again and again, and passes SIGTERM and SIGINT on to it.

  The command dies with this process on Linux, and is in a session of its own,
  so that Ctrl-C reaches it once.

  Args:
    command: Command with its arguments.
    folder: Folder, on a disk or in a bucket, in which a new step's subfolder
      shows progress.

  Attributes:
    stopped_by: The first signal that this process was told to stop by, or 0.
  """

  def __init__(self, command: Sequence[str], *, folder: str | None = None):
    self.stopped_by = 0
    self._command, self._folder = command, folder
    self._child: subprocess.Popen[bytes] | None = None
    self._environment = {**os.environ, VARIABLE: os.urandom(8).hex()}
    for number in (signal.SIGTERM, signal.SIGINT):
      signal.signal(number, self._pass_on)

  def run(self, max_restarts: int = MAX_RESTARTS) -> int:
    """Runs the command until it succeeds, must not be repeated, or is stopped.

    Returns:
      The last exit code; 128 plus the number of a signal, as in shells.
    """
    restarts, reached = 0, -1
    while True:
      code = self._run_once()
      latest = _latest_step(self._folder)
      if latest > reached:
        restarts, reached = 0, latest
      if self.stopped_by or code in _FINAL or restarts >= max_restarts:
        return code
      pause = min(2.0**restarts, _MAX_PAUSE_SECONDS)
      restarts += 1
      print(
        f"supervisor: the command ended with code {code}; restarting it in "
        f"{pause:.0f} s (restart {restarts} of at most {max_restarts} without "
        "progress)",
        file=sys.stderr,
        flush=True,
      )
      end = time.monotonic() + pause
      while time.monotonic() < end and not self.stopped_by:
        time.sleep(_POLL_SECONDS)
      if self.stopped_by:
        return 128 + self.stopped_by

  def _run_once(self) -> int:
    parent, libc = os.getpid(), ctypes.CDLL(None)

    def die_with_parent() -> None:
      libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
      if os.getppid() != parent:
        os._exit(1)

    self._child = subprocess.Popen(
      self._command,
      env=self._environment,
      start_new_session=True,
      preexec_fn=die_with_parent if sys.platform == "linux" else None,
    )
    # A signal may have come before there was a child to pass it on to.
    if self.stopped_by:
      self._child.send_signal(self.stopped_by)
    code = self._child.wait()
    return 128 - code if code < 0 else code

  def _pass_on(self, number: int, frame: FrameType | None) -> None:
    del frame
    self.stopped_by = self.stopped_by or number
    if self._child is not None:
      self._child.send_signal(number)


def supervise_this_command(folder: str) -> None:
  """Becomes the supervisor of the command that this process was started as.

  It returns where the command itself is to run: if it has a supervisor, or with
  `--max_restarts=0`. `folder` is the one of MODEL_DIR that shows progress.
  """
  given = _value_of("max_restarts", sys.argv)
  count = MAX_RESTARTS if given is None else given
  # What is no number is refused with the other flags.
  if VARIABLE in os.environ or not str(count).isdecimal() or int(count) == 0:
    return
  command = [sys.executable, *sys.orig_argv[1:]]
  supervisor = Supervisor(command, folder=progress_folder(command, folder))
  code = supervisor.run(int(count))
  if supervisor.stopped_by and code == 128 + supervisor.stopped_by:
    # Whoever has sent the signal sees that it ended this process.
    signal.signal(supervisor.stopped_by, signal.SIG_DFL)
    os.kill(os.getpid(), supervisor.stopped_by)
  sys.exit(code)


def progress_folder(command: Sequence[str], folder: str) -> str | None:
  """Returns a folder of the MODEL_DIR that a command names, if it does."""
  model_dir = _value_of(r"(?:gin\.)?model_dir", command)
  # As `--gin.MODEL_DIR='"runs/realm"'` it has quotes.
  return model_dir and model_dir.strip("'\"") + f"/{folder}"


def _value_of(flag: str, arguments: Sequence[str]) -> str | None:
  """Returns the last value of a flag, `--FLAG=VALUE` or `--FLAG VALUE`."""
  value = None
  for argument, after in zip(arguments, [*arguments[1:], ""], strict=True):
    if found := re.fullmatch(f"--?{flag}(?:=(.*))?", argument, re.IGNORECASE):
      value = after if found[1] is None else found[1]
  return value


def _latest_step(folder: str | None) -> int:
  """Returns the last step that has a folder; −1 if that is not known."""
  names: Sequence[str] = ()
  # A store that is away must not end the supervisor.
  with contextlib.suppress(Exception):
    if folder is not None and "://" in folder:
      from realm_jax.storage.paths import list_names

      names = list_names(folder)
    elif folder is not None:
      names = os.listdir(folder)
  return max((int(name) for name in names if name.isdecimal()), default=-1)
