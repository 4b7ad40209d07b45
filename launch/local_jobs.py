"""Runs the jobs of a run as processes on this machine."""

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

from realm_jax.launch.jobs import Job, Schedule

# Time from SIGTERM, when the trainer saves a checkpoint, to SIGKILL.
_GRACE_SECONDS = 300.0
# If a job has lost a process, the others cannot save a checkpoint. They have
# this long to report and end.
_SECONDS_AFTER_FAILURE = 10.0
_POLL_SECONDS = 0.05
# Timeout for reading, because a left-over child may keep the output open.
_READ_SECONDS = 5.0


def run_locally(
  jobs: Sequence[Job],
  *,
  grace_seconds: float = _GRACE_SECONDS,
  command: Sequence[str] = (sys.executable,),
) -> int:
  """Runs jobs, each by its schedule, until they end, or SIGINT or SIGTERM.

  Trainer and builder restart themselves. If a process of a job fails for good,
  the job's other processes are stopped, and then all other jobs: without the
  trainer there is nothing to do, and without the builder the trainer's index
  would only grow older. But the trainer continues without an evaluator that
  follows its checkpoints. A signal stops all jobs, and a second one kills them.

  Each process has `grace_seconds` from SIGTERM to SIGKILL. `command` precedes
  the arguments of each job. Returns 0, or the exit code of the first process
  that failed; if a signal ended it or this process, 128 plus the signal, as in
  shells.
  """
  running = _Jobs(grace_seconds, command)
  handlers = {
    number: signal.signal(number, running.interrupt)
    for number in (signal.SIGINT, signal.SIGTERM)
  }
  try:
    code = running.run(jobs)
  finally:
    for number, handler in handlers.items():
      signal.signal(number, handler)
  return 128 - code if code < 0 else code


def free_address() -> str:
  """Returns an address of this machine with a free port."""
  with socket.socket() as listener:
    listener.bind(("localhost", 0))
    return f"localhost:{listener.getsockname()[1]}"


class _Process:
  """A process in its own session; output lines are prefixed with its name."""

  def __init__(self, name: str, job: Job, command: Sequence[str]):
    self.name, self.job = name, job
    self.code, self.ending = 0, "no code yet"
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

  def has_ended(self) -> bool:
    """Returns whether it has ended, with `code`, and its output is complete."""
    if (code := self._process.poll()) is None:
      return False
    self._printer.join(_READ_SECONDS)
    self.code = code
    self.ending = f"signal {-code}" if code < 0 else f"exit code {code}"
    return True

  def send(self, number: int) -> None:
    """Sends a signal, unless the process has ended; SIGKILL to its children."""
    with contextlib.suppress(ProcessLookupError):
      if number == signal.SIGKILL:
        os.killpg(self._process.pid, number)
      else:
        self._process.send_signal(number)


class _Jobs:
  """The processes of the jobs, for one call of `run_locally`."""

  def __init__(self, grace_seconds: float, command: Sequence[str]):
    self._grace_seconds, self._command = grace_seconds, command
    self._running: list[_Process] = []
    self._signals: list[int] = []
    self._code = 0

  def interrupt(self, number: int, _: FrameType | None) -> None:
    """Handles a signal."""
    again = "killing" if self._signals else "stopping"
    print(f"{signal.Signals(number).name}: {again} the jobs", flush=True)
    self._signals.append(number)

  def run(self, jobs: Sequence[Job]) -> int:
    """Returns the first failed process's code, or 0; signals are negative."""
    goes_on = True
    for is_after in (False, True):
      try:
        for job in jobs:
          if goes_on and (job.schedule is Schedule.AFTER) == is_after:
            self._start(job)
        goes_on = self._may_end()
      finally:
        self._stop(self._running, self._grace_seconds)
    return self._code or -sum(self._signals[:1])

  def _start(self, job: Job) -> None:
    """Starts the processes of a job; several get a coordinator address."""
    address = free_address()
    for index in range(job.processes):
      name, arguments = job.name, [*job.arguments]
      if job.processes > 1:
        name = f"{name}-{index}"
        arguments += [
          f"--coordinator_address={address}",
          f"--num_processes={job.processes}",
          f"--process_id={index}",
        ]
      print(f"[{name}] $ {shlex.join(['python', *arguments])}", flush=True)
      self._running.append(_Process(name, job, [*self._command, *arguments]))

  def _may_end(self) -> bool:
    """Waits for jobs that end by themselves; returns whether all went well.

    Returns False after a signal, or if a process that the run needs has failed.
    """
    while any(p.job.schedule is not Schedule.BESIDE for p in self._running):
      for process in self._ended():
        if process.code and not self._goes_on_without(process):
          return False
      if self._signals:
        return False
      time.sleep(_POLL_SECONDS)
    return not self._signals

  def _ended(self) -> list[_Process]:
    """Returns the processes that have ended since the last call."""
    ended = [process for process in self._running if process.has_ended()]
    for process in ended:
      self._running.remove(process)
      print(f"[{process.name}] ended with {process.ending}", flush=True)
    return ended

  def _goes_on_without(self, failed: _Process) -> bool:
    """Stops the rest of the job; returns whether the run continues."""
    job = failed.job
    self._code = self._code or failed.code
    others = [other for other in self._running if other.job == job]
    what = f"{failed.name} failed with {failed.ending}"
    if others:
      what += f"; stopping {', '.join(other.name for other in others)}"
    print(what, flush=True)
    self._stop(others, _SECONDS_AFTER_FAILURE)
    return job.name == "evaluator" and job.schedule is not Schedule.AFTER

  def _stop(self, processes: Iterable[_Process], grace_seconds: float) -> None:
    """Sends SIGTERM to processes, and SIGKILL to any that do not end in time.

    Another signal to this process kills them at once.
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
