"""Processes of this machine, which XManager starts."""

import asyncio
import atexit
import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from xmanager import xm, xm_local
from xmanager.xm_local import executables, execution

from launch.jobs import Job
from launch.local.process_commands import JobProcess
from launch.local.signals import run_until_signal
from launch.local.supervision import Supervisor, describe

_READ_SECONDS = 5.0


class LocalProcesses:
  """Processes of this machine, whose output is shown with their names."""

  def __init__(self, experiment: xm.Experiment):
    self._experiment = experiment
    # XManager starts a binary through a shell. A signal would end the shell
    # and leave the job running, so `exec` replaces the shell by the job.
    self._python = executables.LocalBinary(
      "python", command="exec", args=xm.merge_args([sys.executable])
    )
    self._started: dict[JobProcess, asyncio.subprocess.Process] = {}

  async def start(self, process: JobProcess) -> None:
    """Starts a process, each line of whose output follows its name."""
    command = shlex.join(["python", *process.arguments])
    print(f"[{process.name}] $ {command}", flush=True)
    unit = await self._experiment.add(
      xm.Job(
        self._python,
        xm_local.Local(),
        name=process.name,
        args=list(process.arguments),
        env_vars=dict(process.job.environment),
      )
    )
    self._started[process] = _process_of(unit)

  async def ended(self, process: JobProcess) -> int:
    """Waits for a process and its last output, and returns its exit code."""
    started = self._started[process]
    code = await started.wait()
    assert started.stdout is not None
    # XManager reads it. A process that this one has left behind may write on.
    with contextlib.suppress(TimeoutError):
      async with asyncio.timeout(_READ_SECONDS):
        while not started.stdout.at_eof():
          await asyncio.sleep(0.01)
    print(f"[{process.name}] ended with {describe(code)}", flush=True)
    return code

  def terminate(self, process: JobProcess) -> None:
    """Sends SIGTERM, on which the trainer saves a checkpoint."""
    with contextlib.suppress(ProcessLookupError):
      self._started[process].terminate()

  def kill(self, process: JobProcess) -> None:
    """Sends SIGKILL to the process and its children.

    XManager starts each process in a session of its own.
    """
    with contextlib.suppress(ProcessLookupError):
      os.killpg(self._started[process].pid, signal.SIGKILL)


def _process_of(unit: xm.ExperimentUnit) -> asyncio.subprocess.Process:
  """Returns the process of a local unit with one job.

  XManager keeps processes in a private attribute. Its public `stop` is not
  implemented for them, and a unit's exit code is nowhere else.
  """
  [handle] = unit._local_execution_handles  # pyrefly: ignore
  return handle.process


async def run_locally(
  name: str, jobs: Sequence[Job], *, grace_seconds: float
) -> NoReturn:
  """Runs the jobs as processes of this machine and waits for them.

  Raises:
    SystemExit: Always. The code is 0, or that of the first process that failed;
      if a signal ended it or this process, 128 plus the signal, as in shells.
  """
  async with xm_local.create_experiment(name) as experiment:
    processes = LocalProcesses(experiment)
    supervisor = Supervisor(processes, grace_seconds=grace_seconds)
    code = await run_until_signal(supervisor.run(jobs))
    # At the exit, XManager would say that it terminates all jobs that it has
    # ever started. They have ended.
    atexit.unregister(execution._terminate_local_jobs)
    # Without an exception, XManager would wait for its units again and raise
    # for those that were stopped.
    raise SystemExit(code)
