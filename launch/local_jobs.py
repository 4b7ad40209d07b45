"""The jobs of a run as processes of this machine, which XManager starts."""

import asyncio
import atexit
import contextlib
import dataclasses
import functools
import os
import shlex
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import NoReturn

from xmanager import xm, xm_local
from xmanager.xm_local import executables, execution

from launch.jobs import Job, Schedule

# Processes whose job has lost one cannot save a checkpoint together. They have
# this long to say why they end.
_SECONDS_AFTER_FAILURE = 10.0
_READ_SECONDS = 5.0

# Starts `python ARGUMENTS` in a session of its own, of a job with a name.
Start = Callable[[str, Job, list[str]], Awaitable[asyncio.subprocess.Process]]


@dataclasses.dataclass(eq=False)
class _Running:
  """A process that runs, and its exit code, once it has ended."""

  name: str
  job: Job
  process: asyncio.subprocess.Process
  code: asyncio.Task[int]

  def send(self, number: int) -> None:
    """Sends a signal, unless the process has ended; SIGKILL to its children."""
    with contextlib.suppress(ProcessLookupError):
      if number == signal.SIGKILL:
        os.killpg(self.process.pid, number)
      else:
        self.process.send_signal(number)


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
    start: Starts a process.
    grace_seconds: Time from SIGTERM to SIGKILL.
  """

  def __init__(self, start: Start, *, grace_seconds: float):
    self._start_process = start
    self._grace_seconds = grace_seconds
    self._running: set[_Running] = set()
    self._code = 0

  async def run(self, jobs: Sequence[Job]) -> int:
    """Runs all jobs, each when its schedule says.

    If this coroutine is cancelled, it first stops what runs; if it is
    cancelled again, it kills that.

    Returns:
      Exit code of the first process that failed, or 0. The code is negative if
      a signal ended the process.
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
    for index, arguments in enumerate(job.process_arguments(free_address())):
      name = job.name if job.processes == 1 else f"{job.name}-{index}"
      starting = asyncio.ensure_future(
        self._start_process(name, job, arguments)
      )
      try:
        await asyncio.shield(starting)
      finally:
        # When this is cancelled, the process may already run, and is stopped
        # with the others.
        process = await starting
        code = asyncio.create_task(_exit_code(name, process))
        self._running.add(_Running(name, job, process, code))

  async def _wait_for(self, schedule: Schedule) -> None:
    """Waits for the jobs with a schedule, and for failures of any.

    Raises:
      _FailedError: A process has failed.
    """
    while any(one.job.schedule is schedule for one in self._running):
      await asyncio.wait(
        [one.code for one in self._running],
        return_when=asyncio.FIRST_COMPLETED,
      )
      for one in [one for one in self._running if one.code.done()]:
        # One that failed together with another of its job is gone by now.
        if one in self._running:
          self._running.remove(one)
          if one.code.result():
            await self._end_failed_job(one)

  async def _end_failed_job(self, failed: _Running) -> None:
    job, code = failed.job, failed.code.result()
    self._code = self._code or code
    others = [other for other in self._running if other.job == job]
    what = f"{failed.name} failed with {_describe(code)}"
    if others:
      names = sorted(other.name for other in others)
      what += f"; stopping {', '.join(names)}"
    print(what, flush=True)
    await self._stop(others, _SECONDS_AFTER_FAILURE)
    if job.name != "evaluator" or job.schedule is Schedule.AFTER:
      raise _FailedError(code)

  async def _stop(
    self, processes: Iterable[_Running], grace_seconds: float
  ) -> None:
    """Sends SIGTERM to processes, and SIGKILL to those that do not end."""
    stopping = [*processes]
    for one in stopping:
      one.send(signal.SIGTERM)
    try:
      if stopping:
        await asyncio.wait(
          [one.code for one in stopping], timeout=grace_seconds
        )
    finally:
      slow = [one for one in stopping if not one.code.done()]
      for one in slow:
        print(f"{one.name} has not ended; killing it", flush=True)
        one.send(signal.SIGKILL)
      if slow:
        await asyncio.wait([one.code for one in slow])
      self._running.difference_update(stopping)


async def _exit_code(name: str, process: asyncio.subprocess.Process) -> int:
  """Waits for a process and its last output, and returns its exit code."""
  code = await process.wait()
  # XManager reads it. A process that this one has left behind may write on.
  with contextlib.suppress(TimeoutError):
    async with asyncio.timeout(_READ_SECONDS):
      while process.stdout is not None and not process.stdout.at_eof():
        await asyncio.sleep(0.01)
  print(f"[{name}] ended with {_describe(code)}", flush=True)
  return code


def _describe(code: int) -> str:
  """Returns an exit code in words; negative codes are signals."""
  return f"signal {-code}" if code < 0 else f"exit code {code}"


def free_address() -> str:
  """Returns an address of this machine that nothing listens at."""
  with socket.socket() as found:
    found.bind(("localhost", 0))
    return f"localhost:{found.getsockname()[1]}"


async def run_locally(
  name: str, jobs: Sequence[Job], *, grace_seconds: float
) -> NoReturn:
  """Runs the jobs as processes of this machine and waits for them.

  Each line of their output follows the name of the process.

  Raises:
    SystemExit: Always. The code is 0, or that of the first process that failed;
      if a signal ended it or this process, 128 plus the signal, as in shells.
  """
  # XManager starts a binary through a shell. A signal would end the shell and
  # leave the job running, so `exec` replaces the shell by the job.
  python = executables.LocalBinary(
    "python", command="exec", args=xm.merge_args([sys.executable])
  )

  async def start(
    process_name: str, job: Job, arguments: list[str]
  ) -> asyncio.subprocess.Process:
    command = shlex.join(["python", *arguments])
    print(f"[{process_name}] $ {command}", flush=True)
    unit = await experiment.add(
      xm.Job(
        python,
        xm_local.Local(),
        name=process_name,
        args=arguments,
        env_vars=dict(job.environment),
      )
    )
    # XManager keeps processes in a private attribute. Its public `stop` is not
    # implemented for them, and a unit's exit code is nowhere else.
    [handle] = unit._local_execution_handles  # pyrefly: ignore
    return handle.process

  async with xm_local.create_experiment(name) as experiment:
    supervisor = Supervisor(start, grace_seconds=grace_seconds)
    code = await _run_until_signal(supervisor.run(jobs))
    # At the exit, XManager would say that it terminates all jobs that it has
    # ever started. They have ended.
    atexit.unregister(execution._terminate_local_jobs)
    # Without an exception, XManager would wait for its units again and raise
    # for those that were stopped.
    raise SystemExit(code)


async def _run_until_signal(run: Coroutine[None, None, int]) -> int:
  """Awaits a run, and cancels it on SIGINT and SIGTERM.

  Args:
    run: Run that returns an exit code, which is negative if a signal ended the
      job that failed.

  Returns:
    Exit code for the shell: after a signal, to a job or to this process, 128
    plus the signal.
  """
  caught: list[int] = []
  task = asyncio.ensure_future(run)

  def stop(number: int) -> None:
    again = "killing" if caught else "stopping"
    print(f"{signal.Signals(number).name}: {again} the jobs", flush=True)
    caught.append(number)
    task.cancel()

  for number in (signal.SIGINT, signal.SIGTERM):
    asyncio.get_running_loop().add_signal_handler(
      number, functools.partial(stop, number)
    )
  try:
    code = await task
  except asyncio.CancelledError:
    if not caught:
      raise
    code = -caught[0]
  return 128 - code if code < 0 else code
