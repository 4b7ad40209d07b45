"""The order in which processes of this machine start and stop."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from launch.jobs import Job, Schedule
from launch.local.process_commands import (
  JobProcess,
  free_address,
  processes_of,
)

# Processes whose job has lost one cannot save a checkpoint together. They have
# this long to say why they end.
_SECONDS_AFTER_FAILURE = 10.0


@runtime_checkable
class Processes(Protocol):
  """Processes of this machine."""

  async def start(self, process: JobProcess) -> None:
    """Starts a process, and returns at once."""

  async def ended(self, process: JobProcess) -> int:
    """Waits for a process, and returns its exit code.

    The code is negative if a signal ended the process.
    """

  def terminate(self, process: JobProcess) -> None:
    """Sends SIGTERM to a process, unless it has ended."""

  def kill(self, process: JobProcess) -> None:
    """Sends SIGKILL to a process and its children."""


class _FailedError(Exception):
  """A process without which the run cannot go on has failed."""

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
    processes: Processes to start and stop.
    grace_seconds: Time from SIGTERM to SIGKILL.
  """

  def __init__(self, processes: Processes, *, grace_seconds: float):
    self._processes = processes
    self._grace_seconds = grace_seconds
    self._running: dict[JobProcess, asyncio.Task[int]] = {}
    self._code = 0

  async def run(self, jobs: Sequence[Job]) -> int:
    """Runs all jobs, each when its schedule says.

    If this coroutine is cancelled, it first stops what runs; if it is
    cancelled again, it kills that.

    Returns:
      Exit code of the first process that failed, or 0.
    """
    later = [job for job in jobs if job.schedule is Schedule.AFTER]
    try:
      for job in jobs:
        if job not in later:
          await self._start(job)
      await self._wait_for(Schedule.RUN)
      await self._wait_for(Schedule.BESIDE_TO_ITS_END)
      await self._stop(self._running, self._grace_seconds)
      for job in later:
        await self._start(job)
      await self._wait_for(Schedule.AFTER)
    except _FailedError as failure:
      return failure.code
    finally:
      await self._stop(self._running, self._grace_seconds)
    return self._code

  async def _start(self, job: Job) -> None:
    for process in processes_of(job, free_address()):
      starting = asyncio.create_task(self._processes.start(process))
      try:
        await asyncio.shield(starting)
      finally:
        # When this is cancelled, the process may already run, and is stopped
        # with the others.
        await starting
        self._running[process] = asyncio.create_task(
          self._processes.ended(process)
        )

  async def _wait_for(self, schedule: Schedule) -> None:
    """Waits for the jobs with a schedule, and for failures of any.

    Raises:
      _FailedError: A process has failed.
    """
    while any(process.job.schedule is schedule for process in self._running):
      await asyncio.wait(
        self._running.values(), return_when=asyncio.FIRST_COMPLETED
      )
      ended = [p for p, task in self._running.items() if task.done()]
      for process in ended:
        # One that failed together with another of its job is gone by now.
        task = self._running.pop(process, None)
        if task is not None and task.result():
          await self._end_failed_job(process, task.result())

  async def _end_failed_job(self, process: JobProcess, code: int) -> None:
    job = process.job
    self._code = self._code or code
    others = [other for other in self._running if other.job == job]
    what = f"{process.name} failed with {describe(code)}"
    if others:
      what += f"; stopping {', '.join(other.name for other in others)}"
    print(what, flush=True)
    await self._stop(others, _SECONDS_AFTER_FAILURE)
    if job.name != "evaluator" or job.schedule is Schedule.AFTER:
      raise _FailedError(code)

  async def _stop(
    self, processes: Iterable[JobProcess], grace_seconds: float
  ) -> None:
    """Sends SIGTERM to processes, and SIGKILL to those that do not end."""
    tasks = {process: self._running[process] for process in processes}
    for process in tasks:
      self._processes.terminate(process)
    try:
      if tasks:
        await asyncio.wait(tasks.values(), timeout=grace_seconds)
    finally:
      slow = [process for process, task in tasks.items() if not task.done()]
      for process in slow:
        print(f"{process.name} has not ended; killing it", flush=True)
        self._processes.kill(process)
      if slow:
        await asyncio.wait([tasks[process] for process in slow])
      for process in tasks:
        self._running.pop(process, None)


def describe(code: int) -> str:
  """Returns an exit code in words; negative codes are signals."""
  return f"signal {-code}" if code < 0 else f"exit code {code}"
