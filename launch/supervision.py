"""The order in which local jobs start and stop."""

import asyncio
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from launch.jobs import Job


@runtime_checkable
class Processes(Protocol):
  """Processes of jobs, by the name of the job."""

  async def start(self, job: Job) -> None:
    """Starts a job, and returns at once."""

  async def ended(self, name: str) -> int:
    """Waits for a job, and returns its exit code.

    The code is negative if a signal ended the job.
    """

  async def stop(self, name: str) -> None:
    """Sends SIGTERM to a job, and waits for it."""


async def supervise(processes: Processes, jobs: Sequence[Job]) -> int:
  """Runs trainer and builder side by side, then the evaluator.

  The builder is stopped when the trainer has ended. The trainer is stopped if
  the builder fails, since its index would only grow older. A builder that ends
  with 0 was configured to build one generation. If this coroutine is
  cancelled, it first stops the jobs that run.

  Returns:
    Exit code of the first job that failed, or 0.
  """
  by_name = {job.name: job for job in jobs}
  running: dict[str, asyncio.Task[int]] = {}
  code = 0
  try:
    for name in ("trainer", "builder"):
      if name in by_name:
        await processes.start(by_name[name])
        running[name] = asyncio.create_task(processes.ended(name))
    while "trainer" in running and code == 0:
      await asyncio.wait(running.values(), return_when=asyncio.FIRST_COMPLETED)
      for name in [name for name, task in running.items() if task.done()]:
        code = code or running.pop(name).result()
  finally:
    for name, task in running.items():
      task.cancel()
      await processes.stop(name)
  if code or "evaluator" not in by_name:
    return code
  await processes.start(by_name["evaluator"])
  try:
    return await processes.ended("evaluator")
  except asyncio.CancelledError:
    await processes.stop("evaluator")
    raise
