"""SIGINT and SIGTERM to the launcher, which stop the jobs of this machine."""

import asyncio
import functools
import signal
from collections.abc import Coroutine


async def run_until_signal(run: Coroutine[None, None, int]) -> int:
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
