"""A trainer and its index builder as processes that can be killed."""

import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

PROJECT_DIR = Path(__file__).resolve().parents[2]
_POLL_SECONDS = 0.02
_STOP_SECONDS = 120.0
_OUTPUT_SECONDS = 10.0
_START = "--- start"
_SEARCHES = b"realm_jax.indexes.isolated"
# Tests put a server in its place that has imported the libraries.
start_process: Callable[..., Any] = subprocess.Popen


class JobError(ValueError):
  """A job that failed, or did not end in time."""


class Macro(str):
  """The name of a gin macro, as the value of a binding."""

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
  """Formats a value as gin reads it."""
  return repr(str(value) if isinstance(value, os.PathLike) else value)


class Job:
  """A command that runs as a process, can be restarted, and appends to a log.

  Args:
    name: Name for messages.
    command: Command to run.
    log: File that its output is appended to.
    environment: Environment of the process; None passes on this process's.
  """

  def __init__(
    self,
    name: str,
    command: list[str],
    *,
    log: Path,
    environment: Mapping[str, str] | None = None,
  ):
    self.name = name
    self.log = log
    self.starts = 0
    self.started_at = 0.0
    self.command = command
    self._environment = environment
    self._process: Any = None
    self._output: subprocess.Popen[bytes] | None = None

  def start(self, *flags: str) -> None:
    """Starts or restarts the process, with further flags."""
    self.log.parent.mkdir(parents=True, exist_ok=True)
    with self.log.open("a") as log:
      log.write(f"{_START} {self.starts}\n")
      log.flush()
      # A limit on the sizes of the job's files must not limit its log.
      self._output = subprocess.Popen(
        ["cat"], stdin=subprocess.PIPE, stdout=log
      )
    self._process = start_process(
      [*self.command, *flags],
      cwd=PROJECT_DIR,
      env=None if self._environment is None else dict(self._environment),
      stdout=self._output.stdin,
      stderr=subprocess.STDOUT,
    )
    assert self._output.stdin is not None
    self._output.stdin.close()
    self.starts += 1
    self.started_at = time.monotonic()

  @property
  def pid(self) -> int:
    """Id of the process."""
    return self._running().pid

  def exit_code(self) -> int | None:
    """Returns the exit status; None while the process runs."""
    return self._running().poll()

  def ended(self) -> bool:
    """Returns whether the process has ended successfully.

    Raises:
      JobError: It failed.
    """
    code = self._running().poll()
    if code:
      raise JobError(f"the {self.name} ended with {code}:\n{self.tail()}")
    return code == 0

  def kill(self) -> None:
    """Sends SIGKILL, which no process can handle, and waits."""
    self._running().kill()
    self.close()

  def close(self) -> None:
    """Waits for the process to end, and for its last output."""
    self._running().wait()
    self._close()

  def terminate(self) -> int:
    """Sends SIGTERM, waits, and returns the exit status."""
    self._running().send_signal(signal.SIGTERM)
    try:
      code = self._running().wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
      self.kill()
      raise JobError(
        f"the {self.name} did not stop within {_STOP_SECONDS:.0f} s of "
        f"SIGTERM:\n{self.tail()}"
      ) from None
    self._close()
    return code

  def stop(self) -> None:
    """Kills the process if it still runs."""
    if self._process is not None:
      self.kill()

  def tail(self, characters: int = 2000) -> str:
    """Returns the end of the log."""
    return self.log.read_text(errors="replace")[-characters:]

  def last_output(self) -> str:
    """Returns the log since the last start."""
    return self.log.read_text(errors="replace").rpartition(_START)[2]

  def _running(self) -> Any:
    if self._process is None:
      raise JobError(f"the {self.name} was not started")
    return self._process

  def _close(self) -> None:
    self._process = None
    if self._output is not None:
      # Children of the process may hold the pipe open a moment longer.
      with contextlib.suppress(subprocess.TimeoutExpired):
        self._output.wait(_OUTPUT_SECONDS)


def in_new_process(function: Callable[..., T], *arguments: Any) -> T:
  """Calls a function in a process of its own, so that its memory is its own."""
  context = multiprocessing.get_context("spawn")
  with ProcessPoolExecutor(1, mp_context=context) as pool:
    return pool.submit(function, *arguments).result()


def wait_until(
  condition: Callable[[], bool],
  *,
  what: str,
  jobs: tuple[Job, ...] = (),
  timeout_seconds: float = 600.0,
  poll_seconds: float = _POLL_SECONDS,
) -> None:
  """Waits for a condition, and fails as soon as a job fails.

  Raises:
    JobError: A job failed, or the time is up.
  """
  deadline = time.monotonic() + timeout_seconds
  while not condition():
    for job in jobs:
      job.ended()
    if time.monotonic() > deadline:
      logs = "\n".join(f"{job.name}:\n{job.tail()}" for job in jobs)
      raise JobError(f"no {what} within {timeout_seconds:.0f} s\n{logs}")
    time.sleep(poll_seconds)


def free_port() -> int:
  """Returns a port of this machine that nothing listens at."""
  with socket.socket() as found:
    found.bind(("localhost", 0))
    return int(found.getsockname()[1])


def searching(parent: int | None = None) -> dict[int, int]:
  """Returns the processes that search an index, with their parents.

  Args:
    parent: Process whose children to list; None lists all processes.
  """
  found = {}
  for path in Path("/proc").glob("[0-9]*"):
    try:
      stat = path.joinpath("stat").read_text().rpartition(")")[2].split()
      command = path.joinpath("cmdline").read_bytes()
    except OSError:
      continue  # It ended meanwhile.
    if _SEARCHES in command and parent in (None, int(stat[1])):
      found[int(path.name)] = int(stat[1])
  return found
