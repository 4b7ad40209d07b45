"""Commands of stages as processes: one at a time, and a sidecar beside it.

The processes have sessions of their own, so that Ctrl-C on a terminal reaches
the command that runs them, which stops them as SIGTERM does: a trainer then
saves a checkpoint before it ends.
"""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from realm_jax.console.sigterm import stop_on_sigterm
from realm_jax.stage_commands.command import StageCommand

_POLL_SECONDS = 0.2
_TAIL_LINES = 12


class CommandError(ValueError):
  """A command that failed."""


class StoppedError(ValueError):
  """SIGTERM has stopped a command; what it saved is kept."""


def run_to_end(command: StageCommand, log: Path) -> None:
  """Runs a command, whose output is added to a log, until it ends.

  SIGTERM to this process stops the command, which may first save its work.

  Raises:
    StoppedError: SIGTERM came.
    CommandError: The command failed; the message has the end of its log.
  """
  with stop_on_sigterm() as stop:
    process = _start(command.argv, log)
    try:
      while process.poll() is None:
        if stop.wait(_POLL_SECONDS):
          break
    finally:
      process.terminate()
      code = process.wait()
  if stop.is_set():
    raise StoppedError(f"stopped in `realm_jax.{command.module}`; see {log}")
  if code:
    raise CommandError(
      f"`realm_jax.{command.module}` ended with {code}:\n{tail(log)}\n"
      f"  the whole log is {log}"
    )


@contextlib.contextmanager
def running_beside(
  command: StageCommand, log: Path, *, wait: bool
) -> Iterator[None]:
  """Runs a command during the `with` block, which ends if the command fails.

  The block is then stopped by SIGTERM. At its end the command is terminated,
  or waited for.

  Raises:
    CommandError: The command failed.
    StoppedError: SIGTERM came from elsewhere.
    ValueError: What the block raised.
  """
  # Training has priority; the builder takes the cores that are left.
  process = _start(["nice", "-n", "5", *command.argv], log)
  failed, ended = threading.Event(), threading.Event()

  def watch() -> None:
    if process.wait() > 0:
      failed.set()
      # Repeated, because training may not have installed its handler yet.
      while not ended.wait(1.0):
        os.kill(os.getpid(), signal.SIGTERM)

  watcher = threading.Thread(target=watch)
  with stop_on_sigterm() as stop:
    watcher.start()
    try:
      yield
      if wait:
        process.wait()
    except ValueError:
      if not failed.is_set():
        raise
    finally:
      ended.set()
      process.terminate()
      watcher.join()
  if failed.is_set():
    raise CommandError(f"the index builder failed:\n{tail(log)}\n  see {log}")
  if stop.is_set():
    raise StoppedError("stopped by SIGTERM; the outputs so far are kept")


def _start(argv: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
  log.parent.mkdir(parents=True, exist_ok=True)
  with log.open("a") as output:
    return subprocess.Popen(
      argv, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
    )


def tail(log: Path) -> str:
  """Returns the last lines of a log."""
  return "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
