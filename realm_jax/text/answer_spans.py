"""Answers as tokens: where they occur in blocks, for the training losses.

A span is correct when its token ids are those of an answer, as in Google's
released ORQA reader (`orqa_ops.cc`, `ReaderInputs`): occurrences may overlap,
and a match that stops inside a word counts (the answer `play` in `play
##ground`). `is_continuation` asks for whole words instead.

This runs for every question over thousands of blocks, so it works on flat
arrays and touches each token once per answer.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

TokenIds = Int[np.ndarray, " T"]


class TokenSpans(NamedTuple):
  """Spans in blocks, by block, then start, then width; no span twice.

  `start` and `width` count tokens; `start` is from the block's first token.
  """

  block: Int[np.ndarray, " s"]
  start: Int[np.ndarray, " s"]
  width: Int[np.ndarray, " s"]


def _distinct(answers: Iterable[Sequence[int]]) -> list[tuple[int, ...]]:
  """The answers that have tokens, each once."""
  unique = {tuple(int(token) for token in answer) for answer in answers}
  return sorted(answer for answer in unique if answer)


def _occurrences(
  flat_tokens: TokenIds,
  answer: tuple[int, ...],
  *,
  is_continuation: Bool[np.ndarray, " v"] | None,
) -> Int[np.ndarray, " s"]:
  """Positions at which the answer's tokens stand, block ends ignored."""
  num_starts = max(len(flat_tokens) - len(answer) + 1, 0)
  positions = np.flatnonzero(flat_tokens[:num_starts] == answer[0])
  for offset, token in enumerate(answer[1:], start=1):
    positions = positions[flat_tokens[positions + offset] == token]
  if is_continuation is not None and is_continuation[answer[0]]:
    return positions[:0]
  return positions


def _spans(
  flat_tokens: TokenIds,
  answers: Iterable[Sequence[int]],
  *,
  offsets: Int[np.ndarray, " n+1"],
  starts: Int[np.ndarray, " n"],
  limits: Int[np.ndarray, " n"],
  is_continuation: Bool[np.ndarray, " v"] | None,
) -> TokenSpans:
  """Spans within `starts[b] <= position < limits[b]` of each block b."""
  flat_tokens = np.asarray(flat_tokens)
  found = [TokenSpans(*(np.zeros(0, np.int64) for _ in range(3)))]
  for answer in _distinct(answers):
    first = _occurrences(flat_tokens, answer, is_continuation=is_continuation)
    block = np.searchsorted(offsets, first, side="right") - 1
    limit = first + len(answer)
    inside = (first >= starts[block]) & (limit <= limits[block])
    if is_continuation is not None:
      following = flat_tokens[np.minimum(limit, len(flat_tokens) - 1)]
      inside &= (limit == limits[block]) | ~is_continuation[following]
    first, block = first[inside], block[inside]
    found.append(
      TokenSpans(
        block, first - offsets[block], np.full_like(first, len(answer))
      )
    )
  block, start, width = map(np.concatenate, zip(*found, strict=True))
  order = np.lexsort((width, start, block))
  return TokenSpans(block[order], start[order], width[order])


def find_token_spans(
  flat_tokens: TokenIds,
  offsets: Int[np.ndarray, " n+1"],
  answers: Iterable[Sequence[int]],
  *,
  is_continuation: Bool[np.ndarray, " v"] | None = None,
) -> TokenSpans:
  """Every span of the blocks that equals one of the answers.

  Args:
    flat_tokens: the blocks' token ids end to end.
    offsets: block b holds `flat_tokens[offsets[b]:offsets[b + 1]]`.
    answers: token ids of each answer, without specials; an answer without
      tokens is nowhere.
    is_continuation: which of the vocabulary's ids are `##` pieces; when
      given, a span must not begin with one nor stop before one.
  """
  offsets = np.asarray(offsets, np.int64)
  return _spans(
    flat_tokens,
    answers,
    offsets=offsets,
    starts=offsets[:-1],
    limits=offsets[1:],
    is_continuation=is_continuation,
  )


def has_answer(
  flat_tokens: TokenIds,
  offsets: Int[np.ndarray, " n+1"],
  answers: Iterable[Sequence[int]],
  *,
  is_continuation: Bool[np.ndarray, " v"] | None = None,
) -> Bool[np.ndarray, " n"]:
  """Which blocks contain an answer; arguments as `find_token_spans`."""
  spans = find_token_spans(
    flat_tokens, offsets, answers, is_continuation=is_continuation
  )
  contains = np.zeros(len(offsets) - 1, bool)
  contains[spans.block] = True
  return contains


def answer_spans(
  token_ids: Int[np.ndarray, "k l"],
  lengths: Int[np.ndarray, " k"],
  answers: Iterable[Sequence[int]],
  *,
  max_width: int = 10,
  starts: Int[np.ndarray, " k"] | None = None,
  is_continuation: Bool[np.ndarray, " v"] | None = None,
) -> Bool[np.ndarray, "k l {max_width}"]:
  """Marks, in padded rows, the spans that equal an answer.

  Args:
    token_ids: k rows, each of l ids.
    lengths: a span lies within the first `lengths[i]` ids of row i.
    answers: token ids of each answer, without specials.
    max_width: the widest span; wider answers are not marked.
    starts: the first position a span of each row may take, 0 by default
      (rows of the joint form give the place of their body).
    is_continuation: as for `find_token_spans`.

  Returns:
    True at [i, s, w] where tokens s..s+w of row i equal an answer: the width
    of that span is w + 1.
  """
  num_rows, row_length = token_ids.shape
  offsets = np.arange(num_rows + 1, dtype=np.int64) * row_length
  spans = _spans(
    token_ids.reshape(-1),
    answers,
    offsets=offsets,
    starts=offsets[:-1] + (0 if starts is None else starts),
    limits=offsets[:-1] + lengths,
    is_continuation=is_continuation,
  )
  keep = spans.width <= max_width
  block, start, width = (column[keep] for column in spans)
  marked = np.zeros((num_rows, row_length, max_width), bool)
  marked[block, start, width - 1] = True
  return marked


def widen_to_words(
  start: int, limit: int, continuation: Bool[np.ndarray, " l"]
) -> tuple[int, int]:
  """The smallest span of whole words around tokens [start, limit).

  Google's evaluation maps a span's ends to the words they lie in before it
  cuts the answer from the text, so that `##ington` answers "Washington".

  Args:
    start: the first token.
    limit: one past the last token.
    continuation: whether each token of the block continues a word.
  """
  while start > 0 and continuation[start]:
    start -= 1
  while limit < len(continuation) and continuation[limit]:
    limit += 1
  return start, limit
