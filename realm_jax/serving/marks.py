"""A block's text in pieces: the answer, and what the reader says."""

import itertools
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from realm_jax.corpus.store import Block as CorpusBlock
from realm_jax.evaluation.run import EditedBlock
from realm_jax.text.answer_spans import find_token_spans
from realm_jax.text.wordpieces import WordpieceVocabulary

Mark = Literal["", "said", "answer"]
_MARKS: tuple[Mark, ...] = ("", "said", "answer")


class Segment(NamedTuple):
  """A piece of a text.

  Attributes:
    text: Its characters.
    mark: "answer" for the answer that is explained, "said" for what the reader
      would say of this block alone.
  """

  text: str
  mark: Mark


def marked_body(
  block: CorpusBlock | EditedBlock,
  words: WordpieceVocabulary,
  *,
  answers: Sequence[str],
  said: tuple[int, int] | None = None,
) -> list[Segment]:
  """Returns the body of a block in pieces, which joined are its whole text.

  Words are compared by their wordpieces, so capitals and accents do not matter.

  Args:
    block: Block of a corpus, or an edited one.
    words: Vocabulary of its wordpieces.
    answers: Words whose occurrences are marked as the answer.
    said: Characters [start, limit) of the text that the reader would say.
  """
  text, ranges = block.body, block.byte_ranges
  token_ids = block.body_token_ids
  paint = np.zeros(len(text.encode()), np.int8)
  if said is not None:
    start, limit = (len(text[:place].encode()) for place in said)
    paint[start:limit] = _MARKS.index("said")
  offsets = np.array([0, len(token_ids)])
  found = find_token_spans(token_ids, offsets, map(words.encode, answers))
  ends = np.append(words.is_continuation[token_ids], False)
  for start, width in zip(
    found.start.tolist(), found.width.tolist(), strict=True
  ):
    limit = start + width
    # A part of a word is no answer.
    if not (ends[start] or ends[limit]):
      paint[ranges[start, 0] : ranges[limit - 1, 1]] = _MARKS.index("answer")
  bounds = [0, *(np.flatnonzero(np.diff(paint)) + 1).tolist(), len(paint)]
  return [
    Segment(text.encode()[start:limit].decode(), _MARKS[paint[start]])
    for start, limit in itertools.pairwise(bounds)
    if start < limit
  ]
