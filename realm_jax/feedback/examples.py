"""The examples of a growing feedback log: lists with their rewards.

Examples are in the order in which the log has their rewards. An example depends
only on earlier lines, so all processes see the same examples. Unusable lines
are left out and counted: malformed lines, rewards of unknown lists, repeated
rewards, and most lists of a query that floods the log.
"""

import collections
import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from absl import logging
from etils import epath

from realm_jax.feedback.log import (
  FeedbackError,
  Rewards,
  Served,
  checked_rewards,
  log_files,
)

Split = Literal["train", "validation"]
# One list in ten is held out of training.
_HELD_OUT = 10
# At most 50 of the last 1000 examples may have the same query.
_FLOOD_WINDOW, _MAX_OF_A_QUERY = 1000, 50
# Weight of the overall mean reward in a query's baseline, in rewards.
_PRIOR_COUNT = 2.0
_MAX_QUERIES = 1_000_000
# Number of lists that may wait for rewards; older ones are forgotten.
_MAX_WAITING = 1_000_000
# A line has a few kilobytes, and only the service writes this file.
_MAX_LINE_BYTES = 1 << 20
_POLL_SECONDS = 1.0


class _Place(NamedTuple):
  """Position of a line in the log."""

  file: int
  offset: int


class _Waiting(NamedTuple):
  """A list without rewards: the hash of its query, and its length."""

  place: _Place
  query: int
  num_shown: int


class Feedback(NamedTuple):
  """A list with its rewards.

  Attributes:
    served: The list.
    rewards: Rewards of the list, as they were sent.
    baseline: Mean reward of earlier lists, mainly for the same query.
  """

  served: Served
  rewards: Rewards
  baseline: float


@dataclasses.dataclass
class _Mean:
  total: float = 0.0
  count: float = 0.0

  def add(self, value: float) -> None:
    self.total, self.count = self.total + value, self.count + 1


class FeedbackExamples:
  """The examples of a log, whose number grows with it.

  `poll` reads new lines, at most once a second. A log that does not exist yet
  has no examples.

  Attributes:
    left_out: Number of lines that were left out, by reason.
  """

  def __init__(self, directory: epath.PathLike, split: Split = "train"):
    self.directory, self._split = Path(directory), split
    self.left_out = collections.Counter[str]()
    self._read: dict[int, int] = {}
    self._files: list[Path] = []
    # Lists without rewards so far.
    self._waiting: dict[str, _Waiting] = {}
    self._lists: list[_Place] = []
    self._rewards: list[tuple[Rewards, float]] = []
    self._of_queries = collections.OrderedDict[int, _Mean]()
    self._of_all = _Mean()
    self._last = collections.deque[int]()
    self._counts = collections.Counter[int]()
    self._polled_at = -math.inf
    self.poll()

  def __len__(self) -> int:
    return len(self._lists)

  def __getitem__(self, number: int) -> Feedback:
    place = self._lists[number]
    with self._files[place.file].open("rb") as file:
      file.seek(place.offset)
      served = _served(json.loads(file.readline(_MAX_LINE_BYTES)))
    return Feedback(served, *self._rewards[number])

  def poll(self) -> None:
    """Reads new lines."""
    if time.monotonic() - self._polled_at < _POLL_SECONDS:
      return
    before = self.left_out.total()
    self._files = log_files(self.directory)
    for number, path in enumerate(self._files):
      self._read_file(number, path)
    self._polled_at = time.monotonic()
    if self.left_out.total() > before:
      reasons = ", ".join(f"{n} {why}" for why, n in self.left_out.items())
      logging.log_every_n_seconds(
        *(logging.WARNING, "%s: left out so far: %s", 60),
        *(self.directory, reasons),
      )

  def _read_file(self, number: int, path: Path) -> None:
    offset = self._read.get(number, 0)
    if path.stat().st_size <= offset:
      return
    with path.open("rb") as file:
      file.seek(offset)
      while line := file.readline(_MAX_LINE_BYTES):
        if not line.endswith(b"\n") and len(line) < _MAX_LINE_BYTES:
          # The line is still being written.
          break
        try:
          self._take(json.loads(line), _Place(number, offset))
        except (ValueError, TypeError, KeyError, RecursionError):
          self.left_out["malformed lines"] += 1
        offset += len(line)
    self._read[number] = offset

  def _take(self, event: Any, place: _Place) -> None:
    if not isinstance(event, dict):
      raise FeedbackError("a line is no event")
    if (name := event.get("list")) is not None:
      served = _served(event)
      text = served.query.strip().lower().encode()
      query = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())
      self._waiting[str(name)] = _Waiting(place, query, len(served.shown))
      if len(self._waiting) > _MAX_WAITING:
        del self._waiting[next(iter(self._waiting))]
      return
    name, rewards = event["of"], checked_rewards(event["rewards"])
    waiting = self._waiting.pop(name, None)
    if waiting is None:
      self.left_out["rewards of an unknown list, or repeated"] += 1
      return
    place, query, num_shown = waiting
    if isinstance(rewards, list) and len(rewards) != num_shown:
      self.left_out["rewards of a list of another length"] += 1
      return
    is_held_out = hashlib.blake2b(name.encode()).digest()[0] % _HELD_OUT == 0
    if is_held_out != (self._split == "validation"):
      return
    if self._counts[query] >= _MAX_OF_A_QUERY:
      self.left_out["rewards of a query that floods the log"] += 1
      return
    self._last.append(query)
    self._counts[query] += 1
    if len(self._last) > _FLOOD_WINDOW:
      self._counts[self._last.popleft()] -= 1
    self._lists.append(place)
    self._rewards.append((rewards, self._baseline(query)))
    total = total_reward(rewards)
    self._of_all.add(total)
    self._of_queries.setdefault(query, _Mean()).add(total)
    self._of_queries.move_to_end(query)
    if len(self._of_queries) > _MAX_QUERIES:
      self._of_queries.popitem(last=False)

  def _baseline(self, query: int) -> float:
    """Returns the mean reward of a query, shrunk towards the overall mean."""
    prior = self._of_all.total / max(self._of_all.count, 1.0)
    of_query = self._of_queries.get(query, _Mean())
    total = of_query.total + _PRIOR_COUNT * prior
    return total / (of_query.count + _PRIOR_COUNT)


def total_reward(rewards: Rewards) -> float:
  """Returns the reward of a list: its own, or the sum over its passages."""
  return float(rewards) if isinstance(rewards, int | float) else sum(rewards)


def _served(fields: Mapping[str, Any]) -> Served:
  """Returns the list of a line.

  Raises:
    ValueError, TypeError, KeyError: The line is not a list.
  """
  blocks, hashes = (
    np.array(fields[name], np.int64) for name in ("blocks", "hashes")
  )
  scores = np.array(fields["scores"], np.float32)
  shown = np.array(fields["shown"], np.int32)
  temperature = fields["temperature"]
  is_whole = blocks.shape == hashes.shape == scores.shape == (len(scores),)
  is_order = (
    shown.ndim == 1
    and len(np.unique(shown)) == len(shown) > 0
    and shown.min() >= 0
    and shown.max() < len(scores)
  )
  is_drawn = temperature is None or 0 < float(temperature) < math.inf
  if not (is_whole and is_order and is_drawn and np.isfinite(scores).all()):
    raise FeedbackError("it is no list that a service has written")
  columns = blocks, hashes, scores, shown, temperature
  steps = int(fields["checkpoint"]), int(fields["snapshot"])
  return Served(str(fields["query"]), *columns, *steps)
