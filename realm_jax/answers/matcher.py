"""Finds all occurrences of many answers in some blocks, with one automaton.

An Aho-Corasick automaton reads each byte once, however many answers there are.
Regular expressions are searched where one of their literals occurs.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from ahocorasick_rs import BytesAhoCorasick, Implementation
from jaxtyping import Bool, Int, UInt16, UInt64

from realm_jax.answers.distinct import (
  TOKEN_BYTES,
  DistinctAnswers,
  token_text,
)
from realm_jax.corpus.store import Corpus
from realm_jax.text import answer_spans
from realm_jax.text.pattern_literals import (
  fold,
  required_literals,
  sufficient_literals,
)
from realm_jax.text.patterns import Pattern, PatternError

# Blocks that one search may have, and tokens that a body may have.
MAX_BLOCKS = 1 << 17
MAX_LIMIT = (1 << 16) - 1
_BLOCK_SHIFT = 16
_ANSWER_SHIFT = 33
# Blocks whose matches, Python objects for a moment, are in memory together.
_BLOCKS_PER_CALL = 512

# An occurrence: the number of the answer, that of the block, and the first
# token of its body behind the occurrence, or 0 by the rule of characters.
Keys = UInt64[np.ndarray, " m"]


class Matches(NamedTuple):
  """Blocks that contain answers, sorted by answer and block.

  By the rule of tokens, `limit` counts the body's tokens up to the end of the
  first occurrence; otherwise it is 0.
  """

  answer: Int[np.ndarray, " m"]
  block: Int[np.ndarray, " m"]
  limit: UInt16[np.ndarray, " m"]


def distinct(keys: Keys) -> UInt64[np.ndarray, " u"]:
  """Returns the first occurrence of each answer in each block, sorted."""
  keys = np.sort(keys)
  pairs = keys >> np.uint64(_BLOCK_SHIFT)
  return keys[np.diff(pairs, prepend=~pairs[:1]) != 0]


def shifted(keys: Keys, num_blocks: int) -> Keys:
  """Returns keys whose blocks have numbers that are greater by so many."""
  return keys + np.uint64(num_blocks << _BLOCK_SHIFT)


def unpacked(keys: Keys) -> Matches:
  """Returns what sorted keys hold."""
  answers = (keys >> np.uint64(_ANSWER_SHIFT)).astype(np.int64)
  blocks = (keys >> np.uint64(_BLOCK_SHIFT)).astype(np.int64) % MAX_BLOCKS
  return Matches(answers, blocks, keys.astype(np.uint16))


def _packed(
  answers: Int[np.ndarray, " m"],
  blocks: Int[np.ndarray, " m"],
  limits: Int[np.ndarray, " m"] | int,
) -> Keys:
  keys = answers.astype(np.uint64) << np.uint64(_ANSWER_SHIFT)
  keys |= blocks.astype(np.uint64) << np.uint64(_BLOCK_SHIFT)
  return keys | np.minimum(limits, MAX_LIMIT).astype(np.uint64)


class _Automaton:
  """Finds strings in texts that stand end to end."""

  def __init__(self, strings: Sequence[bytes]):
    self._automaton = BytesAhoCorasick(
      # The other implementations need a gigabyte, or twice the time.
      strings,
      implementation=Implementation.ContiguousNFA,
    )

  def occurrences(
    self, text: bytes, offsets: Int[np.ndarray, " bounds"]
  ) -> tuple[
    Int[np.ndarray, " m"], Int[np.ndarray, " m"], Int[np.ndarray, " m"]
  ]:
    """Returns strings, the texts that they occur in, and where they end.

    Text i is `text[offsets[i]:offsets[i + 1]]`; an end counts from its start.
    """
    found = self._automaton.find_matches_as_indexes(text, overlapping=True)
    # Four times as fast as np.array.
    flat = itertools.chain.from_iterable(found)
    table = np.fromiter(flat, np.int64, 3 * len(found)).reshape(-1, 3)
    strings, starts, limits = table.T
    owners = np.searchsorted(offsets, starts, side="right") - 1
    inside = limits <= offsets[owners + 1]
    owners = owners[inside]
    return strings[inside], owners, limits[inside] - offsets[owners]


class BlockMatcher:
  """Finds which of some blocks contain which answers.

  Attributes:
    refused: Why a pattern is not searched, by its number: it is not valid, or
      too slow. Its matches up to then must not be used.

  Args:
    answers: Answers to look for.
    vocab_size: Number of tokens.
    continuation: Whether each token continues a word; needed for patterns by
      the rule of tokens.
  """

  def __init__(
    self,
    answers: DistinctAnswers,
    *,
    vocab_size: int,
    continuation: Bool[np.ndarray, " v"] | None = None,
  ):
    self.refused: dict[int, str] = {}
    self._answers = answers
    self._continuation = continuation
    self._strings = None
    if answers.strings:
      self._strings = _Automaton([text.encode() for text in answers.strings])
    self._codes = np.zeros(0, np.uint32)
    if answers.rule == "tokens":
      characters = token_text(range(vocab_size)).encode()
      self._codes = np.frombuffer(characters, np.uint32)
    self._patterns: dict[int, Pattern] = {}
    for pattern, number in answers.pattern_numbers.items():
      try:
        # Not the one that the process shares: each has its own time.
        self._patterns[number] = Pattern(pattern)
      except PatternError as error:
        self.refused[number] = str(error)
    # Patterns by literal, and those to search in all blocks.
    self._of_literal: dict[str, list[int]] = {}
    self._everywhere: list[int] = []
    # Literals and patterns that surely match where an ASCII text has them.
    self._certain = set[tuple[str, int]]()
    for number in self._patterns:
      pattern = answers.patterns[number - len(answers.strings)]
      literals = required_literals(pattern)
      if literals is None:
        self._everywhere.append(number)
      for literal in literals or ():
        self._of_literal.setdefault(literal, []).append(number)
      if answers.rule == "characters":
        certain = sufficient_literals(pattern)
        self._certain |= {(literal, number) for literal in certain}
    self._literals = None
    if self._of_literal:
      self._literals = _Automaton([text.encode() for text in self._of_literal])

  def search(self, corpus: Corpus, rows: Int[np.ndarray, " n"]) -> Keys:
    """Returns occurrences, unsorted; blocks are numbered as in `rows`.

    There are at most `MAX_BLOCKS` rows.
    """
    found = [np.zeros(0, np.uint64)]
    for first in range(0, len(rows), _BLOCKS_PER_CALL):
      part = rows[first : first + _BLOCKS_PER_CALL]
      for keys in (self._string_keys, self._pattern_keys):
        found.append(shifted(keys(corpus, part), first))
    return np.concatenate(found)

  def _string_keys(self, corpus: Corpus, rows: Int[np.ndarray, " n"]) -> Keys:
    if self._strings is None:
      return np.zeros(0, np.uint64)
    if self._answers.rule == "characters":
      strings, blocks, _ = self._strings.occurrences(
        *_end_to_end(corpus.bodies_utf8(rows))
      )
      return _packed(strings, blocks, 0)
    tokens, offsets = corpus.body_tokens_flat(rows)
    text = self._codes[tokens].tobytes()
    strings, blocks, limits = self._strings.occurrences(
      text, offsets * TOKEN_BYTES
    )
    return _packed(strings, blocks, limits // TOKEN_BYTES)

  def _pattern_keys(self, corpus: Corpus, rows: Int[np.ndarray, " n"]) -> Keys:
    if not self._patterns:
      return np.zeros(0, np.uint64)
    bodies, found = corpus.bodies_utf8(rows), list[tuple[int, int, int]]()
    for (number, block), certain in self._pairs(bodies).items():
      limit: int | None = 0
      if not certain:
        limit = self._limit(number, corpus, int(rows[block]), bodies[block])
      if limit is not None:
        found.append((number, block, limit))
    return _packed(*np.array(found, np.int64).reshape(-1, 3).T)

  def _pairs(self, bodies: Sequence[bytes]) -> dict[tuple[int, int], bool]:
    """Returns patterns and blocks that share a literal, so that they may match.

    Those that surely match, without a search, have the value True.
    """
    everywhere = itertools.product(self._everywhere, range(len(bodies)))
    pairs = dict.fromkeys(everywhere, False)
    if self._literals is None:
      return pairs
    folded = [fold(body.decode()).encode() for body in bodies]
    strings, blocks, _ = self._literals.occurrences(*_end_to_end(folded))
    groups = list(self._of_literal.items())
    is_ascii = [body.isascii() for body in bodies]
    occurrences = set(zip(strings.tolist(), blocks.tolist(), strict=True))
    for index, block in sorted(occurrences):
      literal, numbers = groups[index]
      for number in numbers:
        certain = is_ascii[block] and (literal, number) in self._certain
        pairs[number, block] = pairs.get((number, block), False) or certain
    return pairs

  def _limit(
    self, number: int, corpus: Corpus, row: int, body: bytes
  ) -> int | None:
    """Returns where a pattern's first match ends, as a key does, if any."""
    if number in self.refused:
      return None
    pattern = self._patterns[number]
    try:
      if self._answers.rule == "characters":
        return 0 if pattern.spans(body.decode(), at_most=1) else None
      assert self._continuation is not None
      spans = answer_spans.find_pattern_spans(
        body,
        corpus.body_byte_ranges(row),
        self._continuation[corpus.body_token_ids(row)],
        pattern,
      )
      return min((limit for _, limit in spans), default=None)
    except PatternError as error:
      self.refused[number] = str(error)
      return None


def _end_to_end(
  texts: Sequence[bytes],
) -> tuple[bytes, Int[np.ndarray, " bounds"]]:
  lengths = np.fromiter(map(len, texts), np.int64, len(texts))
  return b"".join(texts), np.concatenate([[0], np.cumsum(lengths)])
