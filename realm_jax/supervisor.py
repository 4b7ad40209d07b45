"""Restarts a command that failed, which then resumes from its files.

`realm_jax.train` and `realm_jax.build_index` start themselves again as a child
of such a supervisor, except with `--max_restarts=0`. The supervisor imports
neither jax nor TensorFlow, so it starts fast and needs little memory.

A command is restarted after a bug, a signal, and every exit code except those
in `_FINAL`. After these, the same command would fail again, or would compete
with the process that has taken its role. Pauses between restarts grow from 1 to
60 seconds. After each new checkpoint, the count of restarts and the pause are
reset.
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

# Environment variable of a supervised command, with a name of its supervisor. A
# supervisor never runs two processes at once.
VARIABLE = "REALM_JAX_SUPERVISOR"
MAX_RESTARTS = 10
# SIGPIPE means that nobody reads the output, as in `train --help | head`.
_FINAL = (
  *(0, ExitCode.USER_ERROR, ExitCode.LOST_ROLE),
  128 + signal.SIGPIPE,
)
_MAX_PAUSE_SECONDS = 60.0
_POLL_SECONDS = 0.05
_PR_SET_PDEATHSIG = 1


class Supervisor:
  """Runs a command, restarts it, and forwards SIGTERM and SIGINT to it.

  On Linux, the command dies with this process. It has its own session, so
  Ctrl-C reaches it only once.

  Args:
    command: Command with its arguments.
    folder: Folder, on a disk or in a bucket, in which a subfolder for a new
      step shows progress.

  Attributes:
    stopped_by: First signal that told this process to stop, or 0.
  """

  def __init__(self, command: Sequence[str], *, folder: str | None = None):
    self.stopped_by = 0
    self._command, self._folder = command, folder
    self._child: subprocess.Popen[bytes] | None = None
    self._environment = {**os.environ, VARIABLE: os.urandom(8).hex()}
    for number in (signal.SIGTERM, signal.SIGINT):
      signal.signal(number, self._pass_on)

  def run(self, max_restarts: int = MAX_RESTARTS) -> int:
    """Runs the command until it succeeds, cannot be repeated, or is stopped.

    Returns:
      The last exit code, or 128 plus the number of a signal, as in shells.
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
    # A signal may have arrived before there was a child to forward it to.
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
  """Turns this process into the supervisor of its own command.

  Returns only if this process should run the command itself, because it already
  has a supervisor or because of `--max_restarts=0`. `folder` is the name of the
  folder in MODEL_DIR that shows progress.
  """
  flag = _value_of("max_restarts", sys.argv)
  count = MAX_RESTARTS if flag is None else flag
  # A value that is not a number is rejected later, with the other flags.
  if VARIABLE in os.environ or not str(count).isdecimal() or int(count) == 0:
    return
  command = [sys.executable, *sys.orig_argv[1:]]
  supervisor = Supervisor(command, folder=progress_folder(command, folder))
  code = supervisor.run(int(count))
  if supervisor.stopped_by and code == 128 + supervisor.stopped_by:
    # This shows the sender that the signal ended this process.
    signal.signal(supervisor.stopped_by, signal.SIG_DFL)
    os.kill(os.getpid(), supervisor.stopped_by)
  sys.exit(code)


def progress_folder(command: Sequence[str], folder: str) -> str | None:
  """Returns the path of a folder in a command's MODEL_DIR, if it has one."""
  model_dir = _value_of(r"(?:gin\.)?model_dir", command)
  # In `--gin.MODEL_DIR='"runs/realm"'` it has quotes.
  return model_dir and model_dir.strip("'\"") + f"/{folder}"


def _value_of(flag: str, arguments: Sequence[str]) -> str | None:
  """Returns the last value of a flag, from `--FLAG=VALUE` or `--FLAG VALUE`."""
  value = None
  for argument, after in zip(arguments, [*arguments[1:], ""], strict=True):
    if match := re.fullmatch(f"--?{flag}(?:=(.*))?", argument, re.IGNORECASE):
      value = after if match[1] is None else match[1]
  return value


def _latest_step(folder: str | None) -> int:
  """Returns the last step that has a folder, or −1 if it is unknown."""
  names: Sequence[str] = ()
  # An unavailable object store must not end the supervisor.
  with contextlib.suppress(Exception):
    if folder is not None and "://" in folder:
      from realm_jax.storage.paths import list_names

      names = list_names(folder)
    elif folder is not None:
      names = os.listdir(folder)
  return max((int(name) for name in names if name.isdecimal()), default=-1)
