"""A trainer and its index builder as processes that can be killed."""

import contextlib
import math
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
# Characters of a log that an error quotes.
_TAIL = 2000
# After this many seconds without a sign of life a process is taken for dead, …
_HEARTBEAT_TIMEOUT_SECONDS = 10
# … and jax ends the others, within this time.
_END_SECONDS = 60.0
# What a process logs once it has met the others.
_CONNECTED = "[Gloo] Rank"
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
  """A command that runs as one or more processes and appends to a log.

  It can be started again when all have ended. Of several processes, none goes
  on without the others: jax ends them.

  Args:
    name: Name for messages.
    command: Command to run. That of several processes takes their flags.
    log: File that the output is appended to; of several processes, that of
      process i to `NAME-i.log`.
    environment: Environment of the processes; None passes on this process's.
    num_processes: Number of processes.

  Attributes:
    log: Log of the first process.
  """

  def __init__(
    self,
    name: str,
    command: list[str],
    *,
    log: Path,
    environment: Mapping[str, str] | None = None,
    num_processes: int = 1,
  ):
    self.name = name
    self._command = command
    self._logs = [log]
    if num_processes > 1:
      self._logs = [
        log.with_stem(f"{log.stem}-{number}") for number in range(num_processes)
      ]
    self.log = self._logs[0]
    self._environment = environment
    self._processes: list[Any] = []
    self._outputs: list[subprocess.Popen[bytes]] = []
    # Log of the process that says most of how the job has ended.
    self._telling = self.log

  def start(self) -> None:
    """Starts or restarts the processes."""
    self.log.parent.mkdir(parents=True, exist_ok=True)
    self._telling = self.log
    port = free_port()
    for number, path in enumerate(self._logs):
      flags = [
        f"--coordinator_address=localhost:{port}",
        f"--num_processes={len(self._logs)}",
        f"--process_id={number}",
        f"--heartbeat_timeout_seconds={_HEARTBEAT_TIMEOUT_SECONDS}",
      ]
      with path.open("a") as log:
        log.write(f"{_START}\n")
        log.flush()
        # A limit on the sizes of the job's files must not limit its log.
        output = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=log)
      assert output.stdin is not None
      self._processes.append(
        start_process(
          [*self._command, *(flags if len(self._logs) > 1 else [])],
          cwd=PROJECT_DIR,
          env=None if self._environment is None else dict(self._environment),
          stdout=output.stdin,
          stderr=subprocess.STDOUT,
        )
      )
      output.stdin.close()
      self._outputs.append(output)

  @property
  def pid(self) -> int:
    """Id of the first process."""
    return self._running()[0].pid

  def exit_code(self) -> int | None:
    """Returns the exit status; None while a process runs.

    It is that of a process that has failed by itself, if any has. jax ends the
    others with a signal.
    """
    codes = [process.poll() for process in self._running()]
    if None in codes:
      return None
    # Status 2 first, then other failures.
    worst = max(range(len(codes)), key=lambda i: (codes[i] == 2, codes[i] != 0))
    self._telling = self._logs[worst]
    return codes[worst]

  def ended(self) -> bool:
    """Returns whether the job has ended successfully.

    Raises:
      JobError: It failed.
    """
    code = self.exit_code()
    if code:
      raise self._failed(f"ended with {code}")
    return code == 0

  def kill(self) -> None:
    """Sends SIGKILL, which no process can handle, and waits."""
    for process in self._running():
      process.kill()
    self.close()

  def kill_one(self, number: int) -> float:
    """Kills one process; returns the seconds until the others have ended.

    Those that have not met it yet would wait for it, and are killed, too.

    Raises:
      JobError: One that has met it still runs after a minute.
    """
    began = time.monotonic()
    for i, process in enumerate(self._running()):
      if i == number or _CONNECTED not in _last_output(self._logs[i]):
        process.kill()
    self._wait(_END_SECONDS)
    return time.monotonic() - began

  def terminate(self) -> int:
    """Sends SIGTERM to the first process, and waits; returns the exit status.

    Raises:
      JobError: A process did not stop.
    """
    self._running()[0].send_signal(signal.SIGTERM)
    codes = self._wait(_STOP_SECONDS)
    return next(filter(None, codes), 0)

  def stop(self) -> None:
    """Kills the job if it still runs."""
    if self._processes:
      self.kill()

  def close(self) -> None:
    """Waits for the processes to end, and for their last output."""
    self._wait(math.inf)

  def last_output(self) -> str:
    """Returns what the process that failed has logged since its start."""
    return _last_output(self._telling)

  def _failed(self, how: str) -> JobError:
    output = self.last_output()[-_TAIL:]
    return JobError(f"the {self.name} {how}:\n{output}")

  def _running(self) -> list[Any]:
    if not self._processes:
      raise JobError(f"the {self.name} was not started")
    return self._processes

  def _wait(self, seconds: float) -> list[int]:
    """Waits for the end of all processes; returns their exit statuses."""
    try:
      codes = [process.wait(seconds) for process in self._running()]
    except subprocess.TimeoutExpired:
      self.kill()
      raise self._failed(f"did not stop within {seconds:.0f} s") from None
    self._processes = []
    for output in self._outputs:
      # Children of a process may hold the pipe open a moment longer.
      with contextlib.suppress(subprocess.TimeoutExpired):
        output.wait(_OUTPUT_SECONDS)
    self._outputs = []
    return codes


def _last_output(log: Path) -> str:
  return log.read_text(errors="replace").rpartition(_START)[2]


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
      logs = "\n".join(
        f"{job.name}:\n{job.last_output()[-_TAIL:]}" for job in jobs
      )
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
