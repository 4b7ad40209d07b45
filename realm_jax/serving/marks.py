"""A block's text in pieces: the answer, and the words of the query."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from realm_jax.corpus.store import Corpus
from realm_jax.text.answer_spans import find_token_spans
from realm_jax.text.wordpieces import WordpieceVocabulary

Mark = Literal["", "match", "said", "answer"]
_MARKS: tuple[Mark, ...] = ("", "match", "said", "answer")

# Words that nearly every text has: to mark them would say nothing.
_FUNCTION_WORDS = frozenset(
  """
  a about after all also an and any are as at be been before but by can did do
  does for from had has have he her him his how i if in into is it its may more
  most no not of on one or our out over s she so some such t than that the their
  them then there these they this those through to under up was we were what
  when where which while who whom whose why will with would you your
  """.split()
)


class Segment(NamedTuple):
  """A piece of a text.

  Attributes:
    text: Its characters.
    mark: "answer" for the answer that is explained, "said" for what the reader
      would say of this block alone, "match" for a word of the query.
  """

  text: str
  mark: Mark


def marked_body(
  corpus: Corpus,
  row: int,
  *,
  query: str,
  answers: Sequence[str],
  said: tuple[int, int] | None = None,
) -> list[Segment]:
  """Returns the body of a block in pieces, which joined are its whole text.

  Words are compared by their wordpieces, so capitals and accents do not matter.

  Args:
    corpus: Corpus of the block.
    row: Row of the block.
    query: Question, or sentence with [MASK].
    answers: Words whose occurrences are marked as the answer.
    said: Bytes of the body, in UTF-8, that the reader would say.
  """
  words, block = corpus.vocabulary, corpus.block(row)
  body, token_ids = block.body.encode(), block.body_token_ids
  ranges = block.byte_ranges
  paint = np.zeros(len(body), np.int8)

  def mark(start: int, limit: int, name: Mark) -> None:
    paint[ranges[start, 0] : ranges[limit - 1, 1]] = _MARKS.index(name)

  asked = set(_telling_words(words, words.encode(query)))
  for start, limit in _word_ranges(words, token_ids):
    if tuple(token_ids[start:limit].tolist()) in asked:
      mark(start, limit, "match")
  if said is not None:
    paint[slice(*said)] = _MARKS.index("said")
  offsets = np.array([0, len(token_ids)])
  found = find_token_spans(token_ids, offsets, map(words.encode, answers))
  ends = np.append(words.is_continuation[token_ids], False)
  for start, width in zip(
    found.start.tolist(), found.width.tolist(), strict=True
  ):
    if not (ends[start] or ends[start + width]):
      mark(start, start + width, "answer")
  bounds = [0, *(np.flatnonzero(np.diff(paint)) + 1).tolist(), len(body)]
  return [
    Segment(body[start:limit].decode(), _MARKS[paint[start]])
    for start, limit in itertools.pairwise(bounds)
    if start < limit
  ]


def _word_ranges(
  words: WordpieceVocabulary, token_ids: Sequence[int] | np.ndarray
) -> Iterator[tuple[int, int]]:
  """Yields the tokens `[start, limit)` of each word."""
  is_first = ~words.is_continuation[np.asarray(token_ids, np.int64)]
  starts = np.flatnonzero(is_first).tolist()
  yield from itertools.pairwise([*starts, len(token_ids)])


def _telling_words(
  words: WordpieceVocabulary, token_ids: Sequence[int]
) -> Iterator[tuple[int, ...]]:
  """Yields the words of a query that say what it is about."""
  for start, limit in _word_ranges(words, token_ids):
    pieces = tuple(token_ids[start:limit])
    text = words.decode(list(pieces))
    is_word = any(character.isalnum() for character in text)
    if is_word and text not in _FUNCTION_WORDS and words.unk_id not in pieces:
      yield pieces
