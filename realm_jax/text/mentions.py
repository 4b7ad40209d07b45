"""Finds mentions of documents' titles in texts, as whole words.

The words and punctuation marks of a title must match the text exactly, except
for white space. In a title with several words, the first letter may also be
lower case; a title of one word must have the same case, so that a film "Speed"
is not found in every "speed". Of overlapping titles, the first and then the
longest is found.

Runs of words are hashed to 64 bits, and looked up among the hashes of titles.
This takes 27 bytes of memory for each title; an automaton would take 180.
"""

import hashlib
import itertools
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import regex
from jaxtyping import Bool, Int, Shaped, UInt64

from realm_jax.text.languages import UNSPACED

# Maximum number of words and marks of a title.
_LONGEST = 12
# A title is dropped if more than this share of the texts mentions it, and more
# than this number.
_MOST_TEXTS, _MOST_OF_FEW = 0.01, 20
_TEXTS_AT_ONCE = 2048
# A word, a character of a script without spaces, or a mark.
_TOKEN = regex.compile(
  rf"[[\w\p{{M}}]--[{UNSPACED}]]+|[{UNSPACED}]\p{{M}}*|[^\w\s]", regex.V1
)
_FACTOR = np.uint64(0x9E3779B97F4A7C15)

_Item = TypeVar("_Item")


class Mentions(NamedTuple):
  """Finds titles in texts, by the key of each.

  `hashes` are sorted, with `keys` in the same order. `may_be` is a filter by
  the first bits of a hash, which few hashes of other phrases pass.
  """

  hashes: UInt64[np.ndarray, " k"]
  keys: Int[np.ndarray, " k"]
  may_be: Bool[np.ndarray, " places"]

  @classmethod
  def of(
    cls, titles: Iterable[tuple[str, int]], sample: Iterable[str]
  ) -> "Mentions":
    """Makes a finder of titles, from titles and their keys.

    Titles are left out if they have no letter (such as years), if they have
    over 12 words and marks, or if more than 20 texts of a sample, and more than
    1%, mention them.
    """
    hashes, keys = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for batch in _batches(titles):
      tokens = _Tokens.of([title for title, _ in batch])
      title_keys = np.array([key for _, key in batch])
      sizes = np.diff(tokens.starts)
      sizes[[not any(map(str.isalpha, title)) for title, _ in batch]] = 0
      for size, phrases in enumerate(tokens.phrases(), start=1):
        hashes.append(phrases[tokens.starts[:-1][sizes == size]])
        keys.append(title_keys[sizes == size])
    ordered, order = np.unique(np.concatenate(hashes), return_index=True)
    may_be = np.zeros(1 << max(10, (8 * len(ordered)).bit_length()), bool)
    may_be[_places(ordered, may_be)] = True
    mentions = cls(ordered, np.concatenate(keys)[order], may_be)
    return mentions._without_common(sample)

  def _without_common(self, sample: Iterable[str]) -> "Mentions":
    mentioned, num_texts = [np.zeros(0, np.int64)], 0
    for batch in _batches(sample):
      texts, keys, _ = self.find(batch)
      mentioned.append(np.unique(np.stack([texts, keys]), axis=1)[1])
      num_texts += len(batch)
    keys, counts = np.unique(np.concatenate(mentioned), return_counts=True)
    common = keys[counts > max(_MOST_OF_FEW, _MOST_TEXTS * num_texts)]
    is_kept = ~np.isin(self.keys, common)
    return self._replace(hashes=self.hashes[is_kept], keys=self.keys[is_kept])

  def find(
    self, texts: Sequence[str]
  ) -> tuple[
    Int[np.ndarray, " m"], Int[np.ndarray, " m"], Int[np.ndarray, "m 2"]
  ]:
    """Returns texts' numbers, titles' keys and character ranges, in order."""
    tokens = _Tokens.of(texts)
    owners = np.repeat(np.arange(len(texts)), np.diff(tokens.starts))
    # The longest title that begins at each token, and its length.
    titles, lengths = np.zeros((2, len(owners)), np.int64)
    for length, hashes in enumerate(tokens.phrases(), start=1):
      is_inside = owners[: len(hashes)] == owners[length - 1 :]
      may_be = self.may_be[_places(hashes, self.may_be)] & is_inside
      numbers, is_title = find_sorted(hashes[may_be], self.hashes)
      firsts = np.flatnonzero(may_be)[is_title]
      titles[firsts], lengths[firsts] = numbers[is_title], length
    chosen, limit = [], 0
    for first in np.flatnonzero(lengths).tolist():
      if first >= limit:
        chosen.append(first)
        limit = first + int(lengths[first])
    firsts = np.array(chosen, np.int64)
    lasts = firsts + lengths[firsts] - 1
    ranges = np.stack([tokens.ranges[firsts, 0], tokens.ranges[lasts, 1]], 1)
    return owners[firsts], self.keys[titles[firsts]], ranges


class _Tokens(NamedTuple):
  """Words and marks of texts, end to end, with characters in their own text.

  `capitals` are hashes with a capital first; text i begins at `starts[i]`.
  """

  hashes: UInt64[np.ndarray, " t"]
  capitals: UInt64[np.ndarray, " t"]
  ranges: Int[np.ndarray, "t 2"]
  starts: Int[np.ndarray, " starts"]

  @classmethod
  def of(cls, texts: Sequence[str]) -> "_Tokens":
    numbers: dict[str, int] = {}
    ids, ranges, starts = list[int](), list[tuple[int, int]](), [0]
    for text in texts:
      for match in _TOKEN.finditer(text):
        ids.append(numbers.setdefault(match[0], len(numbers)))
        ranges.append(match.span())
      starts.append(len(ids))
    words = [unicodedata.normalize("NFC", word) for word in numbers]
    capitals = [word[:1].upper() + word[1:] for word in words]
    return cls(
      np.fromiter(map(_hash, words), np.uint64)[ids],
      np.fromiter(map(_hash, capitals), np.uint64)[ids],
      np.array(ranges, np.int64).reshape(-1, 2),
      np.array(starts),
    )

  def phrases(self) -> Iterator[UInt64[np.ndarray, " p"]]:
    """Yields the hashes of phrases of 1, 2, … tokens, by their first token."""
    yield self.hashes
    phrases = self.capitals
    for length in range(2, _LONGEST + 1):
      phrases = phrases[:-1] * _FACTOR + self.hashes[length - 1 :]
      yield phrases


def _hash(word: str) -> int:
  digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
  return int.from_bytes(digest, "little")


def _places(
  hashes: UInt64[np.ndarray, " n"], may_be: Bool[np.ndarray, " places"]
) -> UInt64[np.ndarray, " n"]:
  return hashes >> np.uint64(65 - len(may_be).bit_length())


def find_sorted(
  values: Shaped[np.ndarray, " n"], ordered: Shaped[np.ndarray, " k"]
) -> tuple[Int[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
  """Returns the positions of values in a sorted array, and if they exist."""
  if not len(ordered):
    return np.zeros(len(values), np.int64), np.zeros(len(values), bool)
  places = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
  return places, ordered[places] == values


def _batches(items: Iterable[_Item]) -> Iterator[list[_Item]]:
  items = iter(items)
  while batch := [*itertools.islice(items, _TEXTS_AT_ONCE)]:
    yield batch
