"""Turns: requests that wait, and those that are computed together."""

import asyncio
import dataclasses
import functools
import itertools
import json
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import Any

import anyio.to_thread
from starlette.exceptions import HTTPException

# Blocks that one turn retrieves for requests that wait together.
_BLOCKS_PER_TURN = 1 << 15
_RETRY_SECONDS = 2

# From all texts, or what was sent for them, to a result for each.
OfTexts = Callable[[Sequence[Any]], Iterable[Any]]
# Whether the client of a request has gone.
IsGone = Callable[[], Awaitable[bool]]


@dataclasses.dataclass(eq=False)
class _Waiting:
  """A request that waits for its turn.

  Requests with an equal `key` may share a turn: `function` is then called once,
  with the texts of all. `cost` counts the blocks that it retrieves.
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
    max_waiting: Requests that may wait, besides those that are computed.

  Attributes:
    is_computing: Whether a thread computes an answer.
  """

  def __init__(self, max_waiting: int):
    self._max_waiting = max_waiting
    self.is_computing = False
    self._waiting: list[_Waiting] = []
    self._worker: asyncio.Task[None] | None = None

  def __len__(self) -> int:
    """Returns how many requests wait."""
    return len(self._waiting)

  def cancel(self) -> None:
    """Stops computing."""
    if self._worker is not None:
      self._worker.cancel()

  async def alone(self, function: Callable[[], Any], is_gone: IsGone) -> bytes:
    """Returns the result of a function as JSON, once its turn has come."""
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
    """Returns a function's results for texts as JSON, once their turn comes.

    A turn computes requests that wait under the same key, up to a cost.

    Raises:
      HTTPException: Too many requests wait, or the client has gone meanwhile.
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
    """Computes what waits, in turns, until nothing does."""
    while self._waiting:
      for request in [*self._waiting]:
        if await request.is_gone():
          self._waiting.remove(request)
          if not request.result.done():
            # Nobody reads it; logs know the code of nginx.
            request.result.set_exception(HTTPException(499, "gone"))
      if not (turn := self._next()):
        continue
      texts = [text for request in turn for text in request.texts]
      call = functools.partial(self._rendered, turn[0].function, texts)
      try:
        # The end of the server does not wait for what is computed.
        found = await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
      except Exception as error:
        for request in turn:
          if not request.result.done():
            request.result.set_exception(error)
        continue
      results = iter(found)
      for request in turn:
        own = [*itertools.islice(results, len(request.texts))]
        # A client may have gone.
        if not request.result.done():
          request.result.set_result(own)

  def _next(self) -> list[_Waiting]:
    """Takes the requests of the next turn from those that wait."""
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
    """Returns results as JSON; it runs in a thread."""
    self.is_computing = True
    try:
      rendered = (
        json.dumps(one, ensure_ascii=False, allow_nan=False)
        for one in function(texts)
      )
      # A wrong text that is told again may have half of a surrogate pair.
      return [one.encode(errors="backslashreplace") for one in rendered]
    finally:
      self.is_computing = False
