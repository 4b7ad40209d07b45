"""Sentences as rows of a few fixed lengths, so that little is compiled.

A row holds one sentence, or a window of one that is longer than the model's
input. Its length follows from the sentence alone, and a batch of rows of one
length always has the same shape: what a sentence is computed with, and so its
labels, do not depend on the other texts of the batch.
"""

import bisect
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

# [CLS] and [SEP].
NUM_SPECIAL_TOKENS = 2
# Three quarters of the rows that these give of Wikipedia's sentences are text.
_LENGTHS = (24, 32, 48, 64, 96, 128, 256, 512)


class Window(NamedTuple):
  """Tokens `start:limit`, of which `first:last` take their labels from it."""

  start: int
  limit: int
  first: int
  last: int


def row_lengths(max_positions: int) -> tuple[int, ...]:
  """Returns the lengths of rows for a model, the longest last."""
  shorter = [length for length in _LENGTHS if length < max_positions]
  return (*shorter, min(max_positions, _LENGTHS[-1]))


def windows(start: int, limit: int, *, capacity: int) -> Iterator[Window]:
  """Yields windows of at most `capacity` tokens over a sentence.

  Consecutive ones share at least a quarter of the capacity, and each gives the
  labels up to the middle of what they share: so these tokens have context on
  both sides.
  """
  first = start
  while limit - start > capacity:
    following = min(start + capacity - capacity // 4, limit - capacity)
    middle = (following + start + capacity) // 2
    yield Window(start, start + capacity, first, middle)
    start, first = following, middle
  yield Window(start, limit, first, limit)


def by_row_length(
  sentences: Int[np.ndarray, "s 2"], lengths: Sequence[int]
) -> dict[int, list[Window]]:
  """Returns the windows of sentences, given as token ranges, by row length."""
  rows: dict[int, list[Window]] = {length: [] for length in lengths}
  capacity = lengths[-1] - NUM_SPECIAL_TOKENS
  for start, limit in sentences.tolist():
    for window in windows(start, limit, capacity=capacity):
      size = window.limit - window.start + NUM_SPECIAL_TOKENS
      rows[lengths[bisect.bisect_left(lengths, size)]].append(window)
  return rows


def fill(
  batch: Sequence[Window],
  token_ids: Int[np.ndarray, " t"],
  *,
  shape: tuple[int, int],
  cls_id: int,
  sep_id: int,
) -> Int[np.ndarray, "r l"]:
  """Returns `[CLS] tokens [SEP]` of each window; rows without one are empty."""
  rows = np.zeros(shape, np.int32)
  rows[:, 0], rows[:, 1] = cls_id, sep_id
  for row, (start, limit, *_) in zip(rows, batch, strict=False):
    size = limit - start
    row[1 : size + 1] = token_ids[start:limit]
    row[size + 1] = sep_id
  return rows
