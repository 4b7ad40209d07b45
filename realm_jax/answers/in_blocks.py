"""Which of the blocks retrieved for a question contain an answer."""

import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int

from realm_jax.answers import matcher
from realm_jax.answers.distinct import DistinctAnswers, QuestionAnswers, Rule
from realm_jax.answers.matcher import BlockMatcher
from realm_jax.answers.store import AnswerStore
from realm_jax.corpus.store import Corpus
from realm_jax.text import patterns
from realm_jax.text.answer_spans import find_pattern_spans
from realm_jax.text.patterns import PatternError

_NO_LIMIT = matcher.MAX_LIMIT


class AnswersInBlocks:
  """Tells which blocks of a corpus contain which answers.

  Answers that are stored cost no reading of blocks. Others, which a task that
  draws its answers at random may have, are searched in the blocks themselves.

  Args:
    corpus: Corpus whose rows are asked about.
    answers: Answers of the store, by their numbers.
    store: Rows of these answers; None where there are no answers.
  """

  def __init__(
    self,
    corpus: Corpus,
    answers: DistinctAnswers,
    store: AnswerStore | None = None,
  ):
    self.corpus = corpus
    self._answers = answers
    self._store = store

  @property
  def rule(self) -> Rule:
    """How a block is found to contain a string: see `DistinctAnswers`."""
    return self._answers.rule

  @functools.cached_property
  def _continuation(self) -> Bool[np.ndarray, " v"]:
    return self.corpus.vocabulary.is_continuation

  def contained(
    self,
    question: QuestionAnswers,
    rows: Int[np.ndarray, " n"],
    *,
    body_tokens: int = _NO_LIMIT,
  ) -> Bool[np.ndarray, " n"]:
    """Returns which blocks contain an answer of a question.

    By the rule of tokens, an answer must end within the first `body_tokens` of
    the body.
    """
    contained = np.zeros(len(rows), bool)
    order = np.argsort(rows)
    strings, known = self._answers.string_numbers, list[int]()
    unknown = DistinctAnswers.of(self.rule, [question])
    if self._store is not None:
      numbers = self._answers.pattern_numbers
      known = [strings[s] for s in unknown.strings if s in strings]
      known += [numbers[p] for p in unknown.patterns if p in numbers]
      unknown = DistinctAnswers(
        self.rule,
        tuple(s for s in unknown.strings if s not in strings),
        tuple(p for p in unknown.patterns if p not in numbers),
      )
    for number in known:
      contained[order] |= self._stored(number, rows[order], body_tokens)
    if len(unknown):
      contained[self._searched(unknown, rows, body_tokens)] = True
    return contained

  def _stored(
    self, number: int, rows: Int[np.ndarray, " n"], body_tokens: int
  ) -> Bool[np.ndarray, " n"]:
    """Returns which of some sorted rows have an answer of the store."""
    assert self._store is not None
    found, limits = self._store.rows(number), self._store.limits(number)
    if not len(found):
      return np.zeros(len(rows), bool)
    places = np.minimum(np.searchsorted(found, rows), len(found) - 1)
    is_there = found[places] == rows
    if limits is not None:
      is_there &= limits[places] <= body_tokens
    return is_there

  def _searched(
    self,
    answers: DistinctAnswers,
    rows: Int[np.ndarray, " n"],
    body_tokens: int,
  ) -> Int[np.ndarray, " m"]:
    """Returns the indices of blocks in whose text some answer is found."""
    needs_words = answers.rule == "tokens" and answers.patterns
    block_matcher = BlockMatcher(
      answers,
      vocab_size=self.corpus.vocab_size,
      continuation=self._continuation if needs_words else None,
    )
    blocks = [np.zeros(0, np.int64)]
    for first in range(0, len(rows), matcher.MAX_BLOCKS):
      part = rows[first : first + matcher.MAX_BLOCKS]
      keys = matcher.distinct(block_matcher.search(self.corpus, part))
      found = matcher.unpacked(keys)
      usable = ~np.isin(found.answer, list(block_matcher.refused))
      blocks.append(first + found.block[usable & (found.limit <= body_tokens)])
    return np.concatenate(blocks)

  def pattern_spans(
    self, wanted: Sequence[str], row: int
  ) -> list[tuple[int, int]]:
    """Returns the token spans `[start, limit)` that match regular expressions.

    Patterns that are invalid or too slow match nothing.
    """
    refused = {} if self._store is None else self._store.refused
    body = self.corpus.bodies_utf8(np.array([row]))[0]
    if not body:
      return []
    ranges = self.corpus.body_byte_ranges(row)
    continuation = self._continuation[self.corpus.body_token_ids(row)]
    spans = set[tuple[int, int]]()
    for pattern in wanted:
      if pattern in refused:
        continue
      try:
        compiled = patterns.compiled(pattern)
        spans |= set(find_pattern_spans(body, ranges, continuation, compiled))
      except PatternError:
        continue  # Reported when it was found.
    return sorted(spans)
