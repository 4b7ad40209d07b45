"""A function that several processes of this machine call."""

import collections
import multiprocessing
from collections.abc import Callable, Generator, Iterable
from concurrent import futures
from typing import Any, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def map_in_processes(
  function: Callable[[_Item], _Result], items: Iterable[_Item], workers: int
) -> Generator[_Result, None, None]:
  """Yields the results for all items, in order; one worker is this process.

  The processes share nothing with this one: each gets the function when it
  starts, so that what the function holds need not follow each item.
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
  try:
    for item in items:
      waiting.append(pool.submit(_call, item))
      # Some wait, so that no process waits for the one that reads the items.
      if len(waiting) > 2 * workers:
        yield waiting.popleft().result()
    while waiting:
      yield waiting.popleft().result()
  finally:
    pool.shutdown(cancel_futures=True)


# The function of a worker process.
_function: Callable[[Any], Any] | None = None


def _set_function(function: Callable[[Any], Any]) -> None:
  global _function
  _function = function


def _call(item: Any) -> Any:
  assert _function is not None
  return _function(item)
