"""Document ids that were seen, in 16 bytes a document."""

import hashlib

import numpy as np
from jaxtyping import Int

_RECENT = 1 << 16


def hash63(text: str) -> int:
  """Returns a stable non-negative 63-bit hash."""
  digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest()
  return int.from_bytes(digest, "little") >> 1


class SeenIds:
  """A map from ids to the numbers under which they were first added.

  A dictionary of five million ids takes a gigabyte. Instead, this keeps sorted
  runs of hashes, merged in doubles like a log-structured merge tree, behind a
  small dictionary of the most recent ones.
  """

  def __init__(self) -> None:
    self._recent: dict[int, int] = {}
    self._runs: list[tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]] = []

  def add(self, name: str, number: int) -> int | None:
    """Adds an id; returns the number of an earlier one that is equal."""
    return self.add_key(hash63(name), number)

  def add_key(self, key: int, number: int) -> int | None:
    """Adds an id by its `hash63`, as `add` does."""
    if (earlier := self._find(key)) is None:
      self._recent[key] = number
      if len(self._recent) >= _RECENT:
        self._store_recent()
    return earlier

  def _find(self, key: int) -> int | None:
    for keys, numbers in self._runs:
      index = np.searchsorted(keys, key)
      if index < len(keys) and keys[index] == key:
        return int(numbers[index])
    return self._recent.get(key)

  def _store_recent(self) -> None:
    keys = np.fromiter(self._recent, np.int64, len(self._recent))
    numbers = np.fromiter(self._recent.values(), np.int64, len(self._recent))
    self._recent.clear()
    while self._runs and len(self._runs[-1][0]) <= len(keys):
      other_keys, other_numbers = self._runs.pop()
      keys = np.concatenate([other_keys, keys])
      numbers = np.concatenate([other_numbers, numbers])
    order = np.argsort(keys)
    self._runs.append((keys[order], numbers[order]))
