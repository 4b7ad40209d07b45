"""The one thread that owns the model, and the requests that wait for it."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from realm_jax.serving.errors import BusyError

_Result = TypeVar("_Result")
_Job = tuple[Future[Any], Callable[[], Any]]


class ModelWorker:
  """Computes one request after the other, in a thread of its own.

  Args:
    max_waiting: Number of requests that may wait, besides the one that is
      computed.
  """

  def __init__(self, max_waiting: int):
    self._waiting: queue.Queue[_Job] = queue.Queue(max_waiting)
    self._ends = threading.Event()
    # A daemon, so that a long computation does not hold up the end.
    self._thread = threading.Thread(
      target=self._run, name="model worker", daemon=True
    )
    self._thread.start()

  def submit(self, compute: Callable[[], _Result]) -> "Future[_Result]":
    """Returns the future of a computation; to cancel it takes it off the queue.

    Raises:
      BusyError: Too many requests wait already.
    """
    future: Future[_Result] = Future()
    try:
      self._waiting.put_nowait((future, compute))
    except queue.Full:
      raise BusyError(
        f"{self._waiting.maxsize} requests wait already; try again in a moment"
      ) from None
    return future

  def close(self, timeout_seconds: float) -> bool:
    """Drops what waits, and returns whether the thread ended in time."""
    self._ends.set()
    self._thread.join(timeout_seconds)
    return not self._thread.is_alive()

  def _run(self) -> None:
    while not self._ends.is_set():
      try:
        future, compute = self._waiting.get(timeout=0.1)
      except queue.Empty:
        continue
      if not future.set_running_or_notify_cancel():
        continue
      try:
        future.set_result(compute())
      except Exception as error:
        future.set_exception(error)
      # What waits idly should hold no result.
      del future, compute
    while not self._waiting.empty():
      self._waiting.get_nowait()[0].cancel()
