"""Finds the retrieved blocks that contain an answer to their question."""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Bool, Int

from realm_jax.answers import patterns
from realm_jax.answers.store import AnswerStore, automaton_of, find_answers
from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.inputs.batch import QuestionAnswers


class AnswersInBlocks:
  """Determines which blocks of a corpus contain which answers.

  For stored answers, no blocks have to be read. Other answers, for example of a
  task that draws answers at random, are searched for in the texts of blocks. So
  are regular expressions, once in each block.
  """

  def __init__(self, corpus: Corpus, store: AnswerStore | None = None):
    self.corpus = corpus
    self._store = store
    # For each pattern, the rows that were searched and the rows that match.
    self._searched: dict[str, tuple[np.ndarray, np.ndarray]] = {}

  def contained(
    self, question: QuestionAnswers, rows: Int[np.ndarray, " n"]
  ) -> Bool[np.ndarray, " n"]:
    """Returns which blocks contain an answer of a question."""
    contained = np.zeros(len(rows), bool)
    unknown = []
    for string in question.strings:
      stored = self._store and self._store.contained(string, rows)
      if stored is None:
        unknown.append(string)
      else:
        contained |= stored
    if unknown:
      _, places = find_answers(automaton_of(unknown), self.corpus, rows)
      contained[places] = True
    for pattern in question.patterns:
      contained |= self._matches(pattern, rows)
    return contained

  def _matches(
    self, pattern: str, rows: Int[np.ndarray, " n"]
  ) -> Bool[np.ndarray, " n"]:
    """Returns which blocks a pattern matches; an invalid one matches none."""
    nothing = np.zeros(0, np.int32)
    searched, matching = self._searched.get(pattern, (nothing, nothing))
    missing = np.setdiff1d(rows, searched)
    if len(missing):
      compiled = patterns.compiled(pattern)
      bodies = self.corpus.bodies_utf8(missing)
      is_match = [any(compiled.spans(body.decode())) for body in bodies]
      searched = np.concatenate([searched, missing])
      matching = np.concatenate([matching, missing[is_match]])
      self._searched[pattern] = searched, matching
    return np.isin(rows, matching)

  def pattern_spans(
    self, wanted: Iterable[str], row: int
  ) -> list[tuple[int, int]]:
    """Returns the token spans `[start, limit)` that cover matches of patterns.

    A match becomes the smallest span that covers it, if span and match start at
    the same place and at the start of a word. The span may end after the match,
    because the evaluation matches a pattern with the start of a prediction,
    which may be longer. Google's released training does not handle patterns: it
    searches for the pattern's own characters. Invalid patterns match nothing.
    """
    if row == NULL_ROW:
      return []
    block = self.corpus.block(row)
    text, starts = block.text, block.byte_ranges[:, 0]
    continues = self.corpus.vocabulary.is_continuation[block.body_token_ids]
    spans = set[tuple[int, int]]()
    for pattern in wanted:
      for match in patterns.compiled(pattern).spans(text):
        first = len(text[: match.start].encode())
        size = len(text[match.start : match.stop].encode())
        start, limit = np.searchsorted(starts, [first, first + size]).tolist()
        if start < limit and starts[start] == first and not continues[start]:
          spans.add((start, limit))
    return sorted(spans)
