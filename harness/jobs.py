"""Runs commands as processes that can be killed."""

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_PROJECT_DIR = Path(__file__).resolve().parents[1]
_STOP_SECONDS = 120.0
_OUTPUT_SECONDS = 10.0
# Number of characters of a log that an error quotes.
_TAIL = 2000
_START = "--- start"
# Tests replace it with a server that has already imported the libraries.
start_process: Callable[..., Any] = subprocess.Popen


class JobError(ValueError):
  """A job that failed, or did not end in time."""


class Macro(str):
  """The name of a gin macro, used as the value of a binding."""

  def __repr__(self) -> str:
    return f"%{self}"


def gin_command(
  module: str, gin_files: Sequence[str], *flags: str, **bindings: Any
) -> list[str]:
  """Returns the command `python -m realm_jax.MODULE` with gin bindings."""
  return [
    *(sys.executable, "-m", f"realm_jax.{module}", *flags),
    *(f"--gin_file={file}" for file in gin_files),
    *(f"--gin.{name}={as_gin(value)}" for name, value in bindings.items()),
  ]


def as_gin(value: Any) -> str:
  """Formats a value in gin's syntax."""
  return repr(str(value) if isinstance(value, os.PathLike) else value)


class Job:
  """A command that runs as a process, with a log, and can be restarted.

  Args:
    name: Name for messages.
    command: Command to run.
    log: File to which the output is appended.
    environment: Environment of the process; None inherits this process's.
  """

  def __init__(
    self,
    name: str,
    command: list[str],
    *,
    log: Path,
    environment: Mapping[str, str] | None = None,
  ):
    self.name, self.log = name, log
    self._command, self._environment = command, environment
    self._process: Any = None
    self._output: subprocess.Popen[bytes] | None = None

  def start(self) -> None:
    """Starts or restarts the process."""
    self.log.parent.mkdir(parents=True, exist_ok=True)
    with self.log.open("a") as log:
      print(_START, file=log, flush=True)
      # By another process, so limits on the job's file sizes spare its log.
      output = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=log)
    assert output.stdin is not None
    self._process = start_process(
      self._command,
      cwd=_PROJECT_DIR,
      env=None if self._environment is None else dict(self._environment),
      stdout=output.stdin,
      stderr=subprocess.STDOUT,
    )
    output.stdin.close()
    self._output = output

  @property
  def pid(self) -> int:
    """Id of the process."""
    return self._process.pid

  def worker(self) -> int | None:
    """Returns the process that the job's supervisor has started, if any."""
    children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
    try:
      return int(children.read_text().split()[0])
    except (FileNotFoundError, ProcessLookupError, IndexError):
      return None

  def exit_code(self) -> int | None:
    """Returns the exit status; None while the process runs."""
    return self._process.poll()

  def ended(self) -> bool:
    """Returns whether the job has ended successfully.

    Raises:
      JobError: The job failed.
    """
    code = self.exit_code()
    if code:
      raise self._failed(f"ended with {code}")
    return code == 0

  def kill(self) -> None:
    """Sends SIGKILL, if the process is running, and waits."""
    if self._process is not None:
      self._process.kill()
      self.wait()

  def terminate(self) -> int:
    """Sends SIGTERM, and waits; returns the exit status.

    Raises:
      JobError: The process did not stop.
    """
    self._process.send_signal(signal.SIGTERM)
    try:
      return self.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
      self.kill()
      raise self._failed(f"did not stop in {_STOP_SECONDS:.0f} s") from None

  def wait(self, seconds: float = math.inf) -> int:
    """Waits until the process and its output end.

    Returns:
      The exit status.

    Raises:
      subprocess.TimeoutExpired: The process did not end in time.
    """
    code = self._process.wait(seconds)
    self._process = None
    assert self._output is not None
    # Children of the process may hold the pipe open for a moment.
    with contextlib.suppress(subprocess.TimeoutExpired):
      self._output.wait(_OUTPUT_SECONDS)
    return code

  def last_output(self) -> str:
    """Returns the log since the last start of the process."""
    return self.log.read_text(errors="replace").rpartition(_START)[2]

  def tail(self) -> str:
    """Returns the end of this log."""
    return self.last_output()[-_TAIL:]

  def _failed(self, how: str) -> JobError:
    return JobError(f"the {self.name} {how}:\n{self.tail()}")


@contextlib.contextmanager
def running(*jobs: Job) -> Iterator[None]:
  """Starts jobs, and kills any that are still running when the block ends."""
  try:
    for job in jobs:
      job.start()
    yield
  finally:
    for job in jobs:
      job.kill()


def wait_until(
  condition: Callable[[], bool],
  *,
  what: str,
  jobs: tuple[Job, ...] = (),
  timeout_seconds: float = 600.0,
  poll_seconds: float = 0.02,
) -> None:
  """Waits for a condition, and fails as soon as a job fails.

  Raises:
    JobError: A job failed, or the timeout expired.
  """
  deadline = time.monotonic() + timeout_seconds
  while not condition():
    for job in jobs:
      job.ended()
    if time.monotonic() > deadline:
      logs = [f"{job.name}:\n{job.tail()}" for job in jobs]
      raise JobError("\n".join([f"no {what} in {timeout_seconds} s", *logs]))
    time.sleep(poll_seconds)


def free_port() -> int:
  """Returns a free port of this machine."""
  with socket.socket() as listener:
    listener.bind(("localhost", 0))
    return int(listener.getsockname()[1])
