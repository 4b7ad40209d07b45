"""A function that several processes of this machine call."""

import collections
import multiprocessing
import signal
from collections.abc import Callable, Generator, Iterable
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from realm_jax.errors import ExitCode, RealmError

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def map_in_processes(
  function: Callable[[_Item], _Result], items: Iterable[_Item], workers: int
) -> Generator[_Result, None, None]:
  """Yields the results for all items, in order; one worker is this process.

  The processes share nothing with this one: each gets the function when it
  starts, so that what the function holds need not follow each item. If this
  process is interrupted, it ends the others.

  Raises:
    RealmError: A process has died, as when it is killed for its memory; the
      same command may succeed, and the exit code says so.
  """
  if workers == 1:
    yield from map(function, items)
    return
  pool = futures.ProcessPoolExecutor(
    workers,
    mp_context=multiprocessing.get_context("spawn"),
    initializer=_set_function,
    initargs=(function,),
  )
  waiting = collections.deque[futures.Future[_Result]]()
  others = {*multiprocessing.active_children()}
  try:
    for item in items:
      waiting.append(_submit(pool, item))
      # Some wait, so that no process waits for the one that reads the items.
      if len(waiting) > 2 * workers:
        yield waiting.popleft().result()
    while waiting:
      yield waiting.popleft().result()
  except (BrokenProcessPool, BrokenPipeError, MemoryError) as error:
    died = RealmError(
      f"one of the {workers} processes has died, perhaps killed because the "
      "memory was full; run the command again with fewer of them, or give the "
      "machine more memory"
    )
    died.exit_code = ExitCode.LOST_PROCESS
    raise died from error
  except KeyboardInterrupt:
    for process in {*multiprocessing.active_children()} - others:
      process.terminate()
    raise
  finally:
    pool.shutdown(cancel_futures=True)


def _submit(
  pool: futures.ProcessPoolExecutor, item: Any
) -> futures.Future[Any]:
  """Submits an item; a process that starts for it does without Ctrl-C.

  A terminal sends it to all processes, and this one ends the others.
  """
  mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
  try:
    return pool.submit(_call, item)
  finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


# The function of a worker process.
_function: Callable[[Any], Any] | None = None


def _set_function(function: Callable[[Any], Any]) -> None:
  global _function
  _function = function


def _call(item: Any) -> Any:
  assert _function is not None
  return _function(item)
