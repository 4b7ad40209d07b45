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
    self._command, self._environment = command, environment
    self._logs = [log]
    if num_processes > 1:
      stems = [f"{log.stem}-{number}" for number in range(num_processes)]
      self._logs = [log.with_stem(stem) for stem in stems]
    self.log = self._logs[0]
    self._processes: list[Any] = []
    self._outputs: list[subprocess.Popen[bytes]] = []
    # Log of the process that says most of how the job has ended.
    self._telling = self.log

  def start(self) -> None:
    """Starts or restarts the processes."""
    self.log.parent.mkdir(parents=True, exist_ok=True)
    self._telling = self.log
    of_all = [
      f"--coordinator_address=localhost:{free_port()}",
      f"--num_processes={len(self._logs)}",
      f"--heartbeat_timeout_seconds={_HEARTBEAT_TIMEOUT_SECONDS}",
    ]
    for number, path in enumerate(self._logs):
      flags = []
      if len(self._logs) > 1:
        flags = [*of_all, f"--process_id={number}"]
      with path.open("a") as log:
        print(_START, file=log, flush=True)
        # A limit on the sizes of the job's files must not limit its log.
        output = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=log)
      assert output.stdin is not None
      self._processes.append(
        start_process(
          [*self._command, *flags],
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
    return self._processes[0].pid

  def exit_code(self) -> int | None:
    """Returns the exit status; None while a process runs.

    It is that of a process that has failed by itself, if any has. jax ends the
    others with a signal.
    """
    codes = [process.poll() for process in self._processes]
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
    """Sends SIGKILL to what still runs, and waits."""
    for process in self._processes:
      process.kill()
    self.wait()

  def kill_one(self, number: int) -> float:
    """Kills one process; returns the seconds until the others have ended.

    Those that have not met it yet would wait for it, and are killed, too.

    Raises:
      JobError: One that has met it still runs after a minute.
    """
    began = time.monotonic()
    for i, process in enumerate(self._processes):
      if i == number or _CONNECTED not in _last_output(self._logs[i]):
        process.kill()
    self.wait(_END_SECONDS)
    return time.monotonic() - began

  def terminate(self) -> int:
    """Sends SIGTERM to the first process, and waits; returns the exit status.

    Raises:
      JobError: A process did not stop.
    """
    self._processes[0].send_signal(signal.SIGTERM)
    return next(filter(None, self.wait(_STOP_SECONDS)), 0)

  def wait(self, seconds: float = math.inf) -> list[int]:
    """Waits for the end of all processes; returns their exit statuses.

    Raises:
      JobError: They did not end within these seconds, and are killed.
    """
    try:
      codes = [process.wait(seconds) for process in self._processes]
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

  def last_output(self) -> str:
    """Returns what the process that failed has logged since its start."""
    return _last_output(self._telling)

  def _failed(self, how: str) -> JobError:
    return JobError(f"the {self.name} {how}:\n{self.last_output()[-_TAIL:]}")


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
  poll_seconds: float = 0.02,
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
      logs = [f"{job.name}:\n{job.last_output()[-_TAIL:]}" for job in jobs]
      raise JobError("\n".join([f"no {what} in {timeout_seconds} s", *logs]))
    time.sleep(poll_seconds)


def free_port() -> int:
  """Returns a port of this machine that nothing listens at."""
  with socket.socket() as found:
    found.bind(("localhost", 0))
    return int(found.getsockname()[1])


def searching(marker: str, parent: int | None = None) -> list[int]:
  """Returns the processes that search an index for a run.

  Args:
    marker: Word that the environment of the run's processes contains.
    parent: Process whose children are listed; None lists all.
  """
  found = []
  for path in Path("/proc").glob("[0-9]*"):
    # One may end meanwhile.
    with contextlib.suppress(OSError):
      stat = path.joinpath("stat").read_text().rpartition(")")[2].split()
      if (
        parent in (None, int(stat[1]))
        and _SEARCHES in path.joinpath("cmdline").read_bytes()
        and marker.encode() in path.joinpath("environ").read_bytes()
      ):
        found.append(int(path.name))
  return found
