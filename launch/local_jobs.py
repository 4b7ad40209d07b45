"""The jobs of a run as processes of this machine."""

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from types import FrameType

from launch.jobs import Job, Schedule

_POLL_SECONDS = 0.05
# Processes whose job has lost one cannot save a checkpoint together. They have
# this long to say why they end.
_SECONDS_AFTER_FAILURE = 10.0
# A process that one has left behind may go on writing to its output.
_READ_SECONDS = 5.0
_PYTHON = (sys.executable,)


class _Process:
  """A process in a session of its own, whose lines follow its name."""

  def __init__(self, name: str, job: Job, command: Sequence[str]):
    self.name, self.job = name, job
    self._process = subprocess.Popen(
      command,
      env={**os.environ, **job.environment},
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      errors="replace",
      start_new_session=True,
    )
    self._printer = threading.Thread(target=self._print, daemon=True)
    self._printer.start()

  def _print(self) -> None:
    assert self._process.stdout is not None
    with self._process.stdout as lines:
      for line in lines:
        print(f"[{self.name}] {line}", end="", flush=True)

  def code(self) -> int | None:
    """Returns the exit code, after the last output; None while it runs."""
    code = self._process.poll()
    if code is not None:
      self._printer.join(_READ_SECONDS)
    return code

  def send(self, number: int) -> None:
    """Sends a signal, unless the process has ended; SIGKILL to its children."""
    with contextlib.suppress(ProcessLookupError):
      if number == signal.SIGKILL:
        os.killpg(self._process.pid, number)
      else:
        self._process.send_signal(number)


class _EndedError(Exception):
  """A process without which the run cannot go on has failed, or a signal came.

  Attributes:
    code: Exit code, which is negative for signals.
  """

  def __init__(self, code: int):
    super().__init__(code)
    self.code = code


class Supervisor:
  """Runs the jobs of a run on this machine.

  If one process of a job fails, the others of that job are stopped, and then
  all other jobs: without the trainer there is nothing to do, and without the
  builder the trainer's index would only grow older. The trainer goes on without
  an evaluator that follows its checkpoints.

  Args:
    grace_seconds: Time from SIGTERM to SIGKILL.
    command: Start of each command, before the job's arguments.
  """

  def __init__(self, grace_seconds: float, command: Sequence[str] = _PYTHON):
    self._grace_seconds, self._command = grace_seconds, command
    self._running: list[_Process] = []
    self._signals: list[int] = []
    self._code = 0

  def interrupt(self, number: int) -> None:
    """Stops the jobs as for a signal; a second time kills them."""
    again = "killing" if self._signals else "stopping"
    print(f"{signal.Signals(number).name}: {again} the jobs", flush=True)
    self._signals.append(number)

  def run(self, jobs: Sequence[Job]) -> int:
    """Runs all jobs, each when its schedule says.

    Returns:
      Exit code of the first process that failed, or 0. It is negative if a
      signal ended the process, or this run.
    """
    later = [job for job in jobs if job.schedule is Schedule.AFTER]
    try:
      for job in jobs:
        if job not in later:
          self._start(job)
      self._wait_for(Schedule.RUN)
      self._wait_for(Schedule.BESIDE_TO_ITS_END)
      self._stop(self._running, self._grace_seconds)
      for job in later:
        self._start(job)
      self._wait_for(Schedule.AFTER)
    except _EndedError as ended:
      self._code = ended.code
    finally:
      self._stop(self._running, self._grace_seconds)
    return self._code or -sum(self._signals[:1])

  def _start(self, job: Job) -> None:
    for index, arguments in enumerate(job.process_arguments(free_address())):
      name = job.name if job.processes == 1 else f"{job.name}-{index}"
      print(f"[{name}] $ {shlex.join(['python', *arguments])}", flush=True)
      self._running.append(_Process(name, job, [*self._command, *arguments]))

  def _ended(self) -> list[tuple[_Process, int]]:
    """Returns the processes that have ended since the last call, and codes."""
    codes = [(process, process.code()) for process in self._running]
    ended = [(process, code) for process, code in codes if code is not None]
    for process, code in ended:
      self._running.remove(process)
      print(f"[{process.name}] ended with {_describe(code)}", flush=True)
    return ended

  def _wait_for(self, schedule: Schedule) -> None:
    """Waits for the jobs with a schedule, and for failures of any.

    Raises:
      _EndedError: A process has failed, or a signal came.
    """
    while any(one.job.schedule is schedule for one in self._running):
      if self._signals:
        raise _EndedError(-self._signals[0])
      for process, code in self._ended():
        if code:
          self._end_failed_job(process, code)
      time.sleep(_POLL_SECONDS)

  def _end_failed_job(self, failed: _Process, code: int) -> None:
    job = failed.job
    self._code = self._code or code
    others = [other for other in self._running if other.job == job]
    what = f"{failed.name} failed with {_describe(code)}"
    if others:
      what += f"; stopping {', '.join(other.name for other in others)}"
    print(what, flush=True)
    self._stop(others, _SECONDS_AFTER_FAILURE)
    if job.name != "evaluator" or job.schedule is Schedule.AFTER:
      raise _EndedError(code)

  def _stop(self, processes: Iterable[_Process], grace_seconds: float) -> None:
    """Sends SIGTERM to processes, and SIGKILL to those that do not end.

    A signal that comes meanwhile kills them at once.
    """
    stopping, num_signals = [*processes], len(self._signals)
    deadline = time.monotonic() + grace_seconds
    for process in stopping:
      process.send(signal.SIGTERM)
    is_killed = False
    while slow := [one for one in stopping if one in self._running]:
      is_late = time.monotonic() > deadline or len(self._signals) > num_signals
      if is_late and not is_killed:
        is_killed = True
        for process in slow:
          print(f"{process.name} has not ended; killing it", flush=True)
          process.send(signal.SIGKILL)
      self._ended()
      time.sleep(_POLL_SECONDS)


def _describe(code: int) -> str:
  """Returns an exit code in words; negative codes are signals."""
  return f"signal {-code}" if code < 0 else f"exit code {code}"


def free_address() -> str:
  """Returns an address of this machine that nothing listens at."""
  with socket.socket() as found:
    found.bind(("localhost", 0))
    return f"localhost:{found.getsockname()[1]}"


def run_locally(supervisor: Supervisor, jobs: Sequence[Job]) -> int:
  """Runs jobs until they end, or until SIGINT or SIGTERM.

  Returns:
    0, or the exit code of the first process that failed; if a signal ended it
    or this process, 128 plus the signal, as in shells.
  """

  def interrupt(number: int, frame: FrameType | None) -> None:
    del frame
    supervisor.interrupt(number)

  before = {
    number: signal.signal(number, interrupt)
    for number in (signal.SIGINT, signal.SIGTERM)
  }
  try:
    code = supervisor.run(jobs)
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
  return 128 - code if code < 0 else code
