"""Queues requests, and computes requests of the same kind together."""

import asyncio
import dataclasses
import functools
import itertools
import json
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import Any

import anyio.to_thread
from starlette.exceptions import HTTPException

# Limit of the blocks that one turn retrieves for several requests.
_BLOCKS_PER_TURN = 1 << 15
_RETRY_SECONDS = 2

# Function from texts, or whatever was sent in their place, to their results.
OfTexts = Callable[[Sequence[Any]], Iterable[Any]]
# Function that returns whether a request's client has disconnected.
IsGone = Callable[[], Awaitable[bool]]


@dataclasses.dataclass(eq=False)
class _Waiting:
  """A request that waits for its turn.

  Requests with equal keys may share a turn: `function` is then called once,
  with the texts of all. `cost` is the number of blocks to retrieve.
  """

  key: Hashable
  function: OfTexts
  texts: Sequence[Any]
  cost: int
  is_gone: IsGone
  result: asyncio.Future[list[bytes]]


class Turns:
  """Computes requests in a thread, one turn after the other.

  Args:
    max_waiting: Number of requests that may wait, besides those in the current
      turn.

  Attributes:
    is_computing: Whether a thread is computing an answer.
  """

  def __init__(self, max_waiting: int):
    self._max_waiting = max_waiting
    self.is_computing = False
    self._waiting: list[_Waiting] = []
    self._worker: asyncio.Task[None] | None = None

  def __len__(self) -> int:
    """Returns the number of waiting requests."""
    return len(self._waiting)

  def cancel(self) -> None:
    """Stops computing."""
    if self._worker is not None:
      self._worker.cancel()

  async def alone(self, function: Callable[[], Any], is_gone: IsGone) -> bytes:
    """Returns the result of a function as JSON, in a turn of its own."""
    (result,) = await self.compute(
      lambda _: [function()], [""], object(), is_gone=is_gone
    )
    return result

  async def compute(
    self,
    function: OfTexts,
    texts: Sequence[Any],
    key: Hashable,
    cost: int = 1,
    *,
    is_gone: IsGone,
  ) -> list[bytes]:
    """Returns a function's results for texts as JSON.

    A turn computes waiting requests with the same key, up to a total cost.

    Raises:
      HTTPException: Too many requests are waiting, or the client has
        disconnected.
    """
    if len(self) >= self._max_waiting:
      raise HTTPException(
        503,
        "too many requests wait; try again in a moment",
        {"retry-after": str(_RETRY_SECONDS)},
      )
    result = asyncio.get_running_loop().create_future()
    self._waiting.append(_Waiting(key, function, texts, cost, is_gone, result))
    if self._worker is None or self._worker.done():
      self._worker = asyncio.create_task(self._work())
    return await result

  async def _work(self) -> None:
    """Computes waiting requests in turns, until there are none."""
    while self._waiting:
      for request in [*self._waiting]:
        if await request.is_gone():
          self._waiting.remove(request)
          if not request.result.done():
            # For logs only, with the status code that nginx uses.
            request.result.set_exception(HTTPException(499, "gone"))
      if not (turn := self._next()):
        continue
      texts = [text for request in turn for text in request.texts]
      call = functools.partial(self._rendered, turn[0].function, texts)
      try:
        # A server that ends does not wait for the current turn.
        rendered = await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
      except Exception as error:
        for request in turn:
          if not request.result.done():
            request.result.set_exception(error)
        continue
      results = iter(rendered)
      for request in turn:
        part = [*itertools.islice(results, len(request.texts))]
        # The client may have disconnected.
        if not request.result.done():
          request.result.set_result(part)

  def _next(self) -> list[_Waiting]:
    """Removes and returns the waiting requests of the next turn."""
    cost, turn = 0, list[_Waiting]()
    for request in self._waiting:
      fits = not turn or (
        request.key == turn[0].key and cost + request.cost <= _BLOCKS_PER_TURN
      )
      if fits:
        turn.append(request)
        cost += request.cost
    self._waiting = [one for one in self._waiting if one not in turn]
    return turn

  def _rendered(self, function: OfTexts, texts: Sequence[Any]) -> list[bytes]:
    """Returns results as JSON; called in a thread."""
    self.is_computing = True
    try:
      rendered = (
        json.dumps(result, ensure_ascii=False, allow_nan=False)
        for result in function(texts)
      )
      # An invalid text in a result may have half of a surrogate pair.
      return [result.encode(errors="backslashreplace") for result in rendered]
    finally:
      self.is_computing = False
