"""Calls a function in several processes on this machine."""

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
  """Yields the results for all items, in order.

  With a single worker, this process calls the function itself. Otherwise each
  worker receives the function once, when it starts, so its data is not sent
  with each item. If this process is interrupted, it ends the workers.

  Raises:
    RealmError: A process died, for example because it ran out of memory. The
      exit code tells callers that the same command may succeed.
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
      # Queued items keep the workers busy while this process reads more.
      if len(waiting) > 2 * workers:
        yield waiting.popleft().result()
    while waiting:
      yield waiting.popleft().result()
  except (BrokenProcessPool, BrokenPipeError, MemoryError) as error:
    died = RealmError(
      f"one of the {workers} processes has died, perhaps killed because the "
      "memory was full; run the command again with fewer processes, or on a "
      "machine with more memory"
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
  """Submits an item; a process that starts for it ignores Ctrl-C.

  A terminal sends Ctrl-C to all processes, but this process ends the others.
  """
  mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
  try:
    return pool.submit(_call, item)
  finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


# The function that a worker process calls.
_function: Callable[[Any], Any] | None = None


def _set_function(function: Callable[[Any], Any]) -> None:
  global _function
  _function = function


def _call(item: Any) -> Any:
  assert _function is not None
  return _function(item)
