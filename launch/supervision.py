"""Which local job starts and stops when, whatever starts it."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from launch.jobs import Job


class Processes(Protocol):
  """Starts jobs, and says and decides when they end."""

  async def start(self, job: Job) -> None:
    """Starts a job and returns."""

  async def ended(self, name: str) -> int:
    """Waits for a job; its exit code, or minus the signal that ended it."""

  async def stop(self, name: str) -> None:
    """Asks a job to end, and waits for it."""


async def supervise(processes: Processes, jobs: Sequence[Job]) -> int:
  """Runs trainer and builder side by side, then the evaluator.

  The builder is stopped when the trainer has ended, and the trainer when the
  builder has failed: it would go on with an index that only grows older. A
  builder that ends with 0 has made the one generation it was to make. When
  this is cancelled, all that run are stopped first.

  Returns:
    The exit code of the first job that failed, or 0.
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
