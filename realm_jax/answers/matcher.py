"""Finds all occurrences of many answers in some blocks, with one automaton.

An Aho-Corasick automaton reads each byte once, however many answers there are.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from ahocorasick_rs import BytesAhoCorasick, Implementation
from jaxtyping import Int, UInt64

from realm_jax.corpus.store import Corpus

_ANSWER_SHIFT = 17
# Blocks that one search may have.
MAX_BLOCKS = 1 << _ANSWER_SHIFT
# Blocks whose matches, Python objects for a moment, are in memory together.
_BLOCKS_PER_CALL = 512


class Matches(NamedTuple):
  """Blocks that contain answers, sorted by answer and block."""

  answer: Int[np.ndarray, " m"]
  block: Int[np.ndarray, " m"]

  @classmethod
  def of(cls, keys: UInt64[np.ndarray, " m"]) -> "Matches":
    """Returns what sorted keys hold."""
    answers = (keys >> np.uint64(_ANSWER_SHIFT)).astype(np.int64)
    return cls(answers, keys.astype(np.int64) % MAX_BLOCKS)


class BlockMatcher:
  """Finds which of some blocks contain which answers, character by character.

  Args:
    answers: Distinct answers to look for, one at least.
  """

  def __init__(self, answers: Sequence[str]):
    self._automaton = BytesAhoCorasick(
      # The other implementations need a gigabyte, or twice the time.
      [text.encode() for text in answers],
      implementation=Implementation.ContiguousNFA,
    )

  def search(
    self, corpus: Corpus, rows: Int[np.ndarray, " n"]
  ) -> UInt64[np.ndarray, " m"]:
    """Returns the occurrences, each once, as sorted keys of `Matches`.

    Blocks are numbered as in `rows`, of which there are at most `MAX_BLOCKS`.
    """
    found = [np.zeros(0, np.uint64)]
    for first in range(0, len(rows), _BLOCKS_PER_CALL):
      keys = self._keys(corpus, rows[first : first + _BLOCKS_PER_CALL])
      found.append(keys + np.uint64(first))
    return np.sort(np.concatenate(found))

  def _keys(
    self, corpus: Corpus, rows: Int[np.ndarray, " n"]
  ) -> UInt64[np.ndarray, " m"]:
    # The texts stand end to end: text i ends at offsets[i + 1].
    texts = corpus.bodies_utf8(rows)
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    found = self._automaton.find_matches_as_indexes(
      b"".join(texts), overlapping=True
    )
    # Four times as fast as np.array.
    flat = itertools.chain.from_iterable(found)
    table = np.fromiter(flat, np.int64, 3 * len(found)).reshape(-1, 3)
    strings, starts, limits = table.T
    blocks = np.searchsorted(offsets, starts, side="right") - 1
    inside = limits <= offsets[blocks + 1]
    keys = strings[inside].astype(np.uint64) << np.uint64(_ANSWER_SHIFT)
    keys = np.sort(keys | blocks[inside].astype(np.uint64))
    # np.unique hashes, which takes ten times as long.
    return keys[np.diff(keys, prepend=~keys[:1]) != 0]
