"""Token spans of blocks that equal an answer, for the training losses.

A span is correct if its token ids equal an answer's, as in Google's released
ORQA reader (`ReaderInputs` in `orqa_ops.cc`): occurrences may overlap, and a
match that ends inside a word counts (the answer `play` in `play ##ground`).
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int


class TokenSpans(NamedTuple):
  """Distinct spans, sorted by block, then start, then width.

  `start` and `width` are in tokens; `start` counts from the block's first one.
  """

  block: Int[np.ndarray, " s"]
  start: Int[np.ndarray, " s"]
  width: Int[np.ndarray, " s"]


def find_token_spans(
  flat_tokens: Int[np.ndarray, " t"],
  offsets: Int[np.ndarray, " bounds"],
  answers: Iterable[Sequence[int]],
) -> TokenSpans:
  """Returns every span of the blocks that equals one of the answers.

  Block b is `flat_tokens[offsets[b]:offsets[b + 1]]`. The answers are token ids
  without special tokens. An answer without tokens has no span.
  """
  parts = [TokenSpans(*np.zeros((3, 0), np.int64))]
  for answer in {tuple(map(int, answer)) for answer in answers} - {()}:
    # All occurrences, including across the ends of blocks.
    num_starts = max(len(flat_tokens) - len(answer) + 1, 0)
    first = np.flatnonzero(flat_tokens[:num_starts] == answer[0])
    for offset, token in enumerate(answer[1:], start=1):
      first = first[flat_tokens[first + offset] == token]
    block = np.searchsorted(offsets, first, side="right") - 1
    inside = first + len(answer) <= offsets[block + 1]
    first, block = first[inside], block[inside]
    width = np.full_like(first, len(answer))
    parts.append(TokenSpans(block, first - offsets[block], width))
  block, start, width = map(np.concatenate, zip(*parts, strict=True))
  order = np.lexsort((width, start, block))
  return TokenSpans(block[order], start[order], width[order])


def widen_to_words(
  start: int, limit: int, continuation: Bool[np.ndarray, " l"]
) -> tuple[int, int]:
  """Returns the smallest span of whole words around tokens [start, limit).

  Google's evaluation extends a span to whole words before it takes the answer
  from the text, so `##ington` answers "Washington". `continuation` is whether
  each token of the block continues a word.
  """
  while start > 0 and continuation[start]:
    start -= 1
  while limit < len(continuation) and continuation[limit]:
    limit += 1
  return start, limit
