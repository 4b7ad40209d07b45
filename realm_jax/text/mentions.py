"""Where texts mention the titles of documents: exactly, as whole words.

A title is found where a text has its words and marks, with any white space. The
first letter may also be a small one if the title has several words; a title of
one word must have the same letters, so that a film "Speed" is not found in
every speed. Of titles that overlap, the one that begins first is found, and of
those the longest.

Every run of a few words is hashed, and looked up among the hashes of titles.
These take 27 bytes of memory for each title, where an Aho-Corasick automaton
would take 180, and thrice as much to be made. Of 64 bits, a wrong match is as
good as impossible.
"""

import functools
import hashlib
import itertools
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import regex
from jaxtyping import Bool, Int, Shaped, UInt8, UInt64

from realm_jax.text.languages import UNSPACED

# Words and marks of the longest title that is found.
_LONGEST = 16
# A title is common if more than this share of the texts mention it, and more
# than so many.
_COMMON, _MOST_OF_FEW = 0.01, 20
_TEXTS_AT_ONCE = 2048
# A word, a character of a script without spaces, or a mark.
_TOKEN = regex.compile(
  rf"[[\w\p{{M}}]--[{UNSPACED}]]+|[{UNSPACED}]\p{{M}}*|[^\w\s]", regex.V1
)
# An odd number, and its inverse modulo 2⁶⁴.
_FACTOR = 0x9E3779B97F4A7C15
_INVERSE = pow(_FACTOR, -1, 1 << 64)

_Item = TypeVar("_Item")


class Found(NamedTuple):
  """Mentions in texts, in order: the number of the text and of the title.

  A mention has the characters `[start, limit)`.
  """

  texts: Int[np.ndarray, " m"]
  titles: Int[np.ndarray, " m"]
  ranges: Int[np.ndarray, "m 2"]


class Mentions:
  """Finds titles, which have a key each.

  `hashes` of titles are sorted, and `keys` are in that order. `marks` says by
  the first bits of a hash whether it may be that of a title (1), or of the
  beginning of one (2).
  """

  def __init__(
    self,
    hashes: UInt64[np.ndarray, " k"],
    keys: Int[np.ndarray, " k"],
    marks: UInt8[np.ndarray, " marks"],
  ):
    self.hashes, self.keys, self._marks = hashes, keys, marks

  @classmethod
  def of(cls, titles: Iterable[tuple[str, int]]) -> "Mentions":
    """Makes what finds titles with their keys.

    Titles without a letter, such as years, and of over 16 words and marks are
    not found.
    """
    hashes, keys = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    beginnings = [np.zeros(0, np.uint64)]
    for batch in _batches(titles):
      tokens = _Tokens.of([title for title, _ in batch])
      sizes = np.diff(tokens.firsts)
      has_letter = np.array([any(map(str.isalpha, t)) for t, _ in batch])
      is_found = has_letter & (sizes > 0) & (sizes <= _LONGEST)
      firsts, sizes = tokens.firsts[:-1][is_found], sizes[is_found]
      hashes.append(tokens.phrases(firsts, sizes))
      keys.append(np.array([key for _, key in batch], np.int64)[is_found])
      for length in range(2, _LONGEST):
        beginnings.append(tokens.phrases(firsts[sizes > length], length))
    found, first = np.unique(np.concatenate(hashes), return_index=True)
    marks = np.zeros(1 << max(10, (8 * len(found)).bit_length()), np.uint8)
    marks[_places(found, marks)] = 1
    marks[_places(np.concatenate(beginnings), marks)] |= 2
    return cls(found, np.concatenate(keys)[first], marks)

  def find(self, texts: Sequence[str]) -> Found:
    """Finds the mentions in texts."""
    tokens = _Tokens.of(texts)
    owners = np.repeat(np.arange(len(texts)), np.diff(tokens.firsts))
    # The longest title that begins at each token, and its length.
    titles, lengths = np.zeros((2, len(owners)), np.int64)
    firsts = np.arange(len(owners))
    for length in range(1, _LONGEST + 1):
      firsts = firsts[firsts + length <= tokens.firsts[owners[firsts] + 1]]
      hashes = tokens.phrases(firsts, length)
      marks = self._marks[_places(hashes, self._marks)]
      is_title = (marks & 1).astype(bool)
      numbers, is_known = find_sorted(hashes[is_title], self.hashes)
      at = firsts[is_title][is_known]
      titles[at], lengths[at] = numbers[is_known], length
      # One word is too little to tell beginnings from the rest.
      if length > 1:
        firsts = firsts[marks >= 2]
    chosen, limit = [], 0
    for first in np.flatnonzero(lengths).tolist():
      if first >= limit:
        chosen.append(first)
        limit = first + int(lengths[first])
    firsts = np.array(chosen, np.int64)
    lasts = firsts + lengths[firsts] - 1
    ranges = np.stack([tokens.ranges[firsts, 0], tokens.ranges[lasts, 1]], 1)
    return Found(owners[firsts], titles[firsts], ranges)

  def without_common(self, texts: Iterable[str]) -> "Mentions":
    """Returns what finds all titles but those that many of the texts mention.

    At most 20 texts, or 1% of them, mention a title that is kept.
    """
    counts, num_texts = np.zeros(len(self.hashes), np.int64), 0
    for batch in _batches(texts):
      found = self.find(batch)
      pairs = np.unique(np.stack([found.texts, found.titles], 1), axis=0)
      counts += np.bincount(pairs[:, 1], minlength=len(counts))
      num_texts += len(batch)
    is_kept = counts <= max(_MOST_OF_FEW, _COMMON * num_texts)
    return Mentions(self.hashes[is_kept], self.keys[is_kept], self._marks)


class _Tokens(NamedTuple):
  """Words and marks of texts, end to end.

  `sums[i]` is the sum of h_j f^j for the hashes h_j of tokens before i, modulo
  2⁶⁴. `capitals` are the hashes with a capital as the first letter, `ranges`
  the characters in the own text, and `firsts` each text's first token.
  """

  hashes: UInt64[np.ndarray, " t"]
  capitals: UInt64[np.ndarray, " t"]
  sums: UInt64[np.ndarray, " sums"]
  ranges: Int[np.ndarray, "t 2"]
  firsts: Int[np.ndarray, " firsts"]

  @classmethod
  def of(cls, texts: Sequence[str]) -> "_Tokens":
    numbers: dict[str, int] = {}
    ids, ranges, firsts = list[int](), list[tuple[int, int]](), [0]
    for text in texts:
      for match in _TOKEN.finditer(text):
        ids.append(numbers.setdefault(match[0], len(numbers)))
        ranges.append(match.span())
      firsts.append(len(ids))
    words = [unicodedata.normalize("NFC", word) for word in numbers]
    capital = [word[:1].upper() + word[1:] for word in words]
    hashes, capitals = (
      np.fromiter(map(_hash, kind), np.uint64)[ids] for kind in (words, capital)
    )
    terms = hashes * _powers(_FACTOR, len(ids))
    return cls(
      hashes,
      capitals,
      np.append(np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)),
      np.array(ranges, np.int64).reshape(-1, 2),
      np.array(firsts),
    )

  def phrases(
    self,
    firsts: Int[np.ndarray, " n"],
    lengths: int | Int[np.ndarray, " n"],
  ) -> UInt64[np.ndarray, " n"]:
    """Returns the hashes of phrases, which begin at tokens."""
    rest = self.sums[firsts + lengths] - self.sums[firsts + 1]
    rest *= _powers(_INVERSE, len(self.hashes))[firsts]
    return np.where(
      np.asarray(lengths) == 1,
      self.hashes[firsts],
      self.capitals[firsts] + rest,
    )


def _hash(word: str) -> int:
  digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
  return int.from_bytes(digest, "little")


@functools.lru_cache(maxsize=2)
def _powers(base: int, count: int) -> UInt64[np.ndarray, " {count}"]:
  """Returns the first powers of a number, modulo 2⁶⁴."""
  factors = np.full(count, base, np.uint64)
  factors[:1] = 1
  return np.cumprod(factors, dtype=np.uint64)


def _places(
  hashes: UInt64[np.ndarray, " n"], marks: UInt8[np.ndarray, " marks"]
) -> UInt64[np.ndarray, " n"]:
  """Returns where the marks of hashes are, by their first bits."""
  return hashes >> np.uint64(65 - len(marks).bit_length())


def find_sorted(
  values: Shaped[np.ndarray, " n"], ordered: Shaped[np.ndarray, " k"]
) -> tuple[Int[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
  """Returns where values are in a sorted array, and whether they are there."""
  places = np.searchsorted(ordered, values)
  places = np.minimum(places, max(len(ordered) - 1, 0))
  if not len(ordered):
    return places, np.zeros(len(values), bool)
  return places, ordered[places] == values


def _batches(items: Iterable[_Item]) -> Iterator[list[_Item]]:
  items = iter(items)
  while batch := [*itertools.islice(items, _TEXTS_AT_ONCE)]:
    yield batch
