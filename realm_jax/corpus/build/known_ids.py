"""Which document ids were seen, in 16 bytes a document."""

import hashlib

import numpy as np

_RECENT = 1 << 16


def hash63(text: str) -> int:
  """A stable non-negative 63-bit hash."""
  digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest()
  return int.from_bytes(digest, "little") >> 1


class KnownIds:
  """Remembers ids with the number they were added under.

  A dictionary of five million ids takes a gigabyte; here they are sorted runs
  of hashes, merged in doubles like a log-structured tree, behind a small
  dictionary of the most recent.
  """

  def __init__(self) -> None:
    self._recent: dict[int, int] = {}
    self._runs: list[tuple[np.ndarray, np.ndarray]] = []

  def add(self, name: str, number: int) -> int | None:
    """Adds an id; returns the number it has if it was there already."""
    key = hash63(name)
    earlier = self._find(key)
    if earlier is None:
      self._recent[key] = number
      if len(self._recent) >= _RECENT:
        self._store_recent()
    return earlier

  def _find(self, key: int) -> int | None:
    if key in self._recent:
      return self._recent[key]
    for keys, numbers in self._runs:
      place = np.searchsorted(keys, key)
      if place < len(keys) and keys[place] == key:
        return int(numbers[place])
    return None

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
