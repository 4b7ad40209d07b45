"""Where answers occur in token arrays."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from realm_jax.text import answer_spans as spans

BLOCKS = st.lists(
  st.lists(st.integers(1, 3), max_size=12), min_size=1, max_size=4
)
ANSWERS = st.lists(st.lists(st.integers(1, 3), max_size=4), max_size=4)


def flattened(blocks):
  offsets = np.cumsum([0] + [len(block) for block in blocks])
  return np.array(list(itertools.chain(*blocks)), np.int32), offsets.astype(
    np.int64
  )


def one_by_one(blocks, answers):
  """Every (block, start, width) by comparing every slice."""
  return sorted(
    (index, start, limit - start)
    for index, block in enumerate(blocks)
    for start in range(len(block))
    for limit in range(start + 1, len(block) + 1)
    if block[start:limit] in answers
  )


def test_spans_of_several_blocks_by_hand():
  blocks = [[5, 7, 8, 7, 8], [8], [], [7, 8]]
  found = spans.find_token_spans(*flattened(blocks), [[7, 8], [8], [9], []])
  assert list(zip(*map(np.ndarray.tolist, found), strict=True)) == [
    (0, 1, 2),
    (0, 2, 1),
    (0, 3, 2),
    (0, 4, 1),
    (1, 0, 1),
    (3, 0, 2),
    (3, 1, 1),
  ]


@given(BLOCKS, ANSWERS)
def test_it_finds_what_comparing_every_slice_finds(blocks, answers):
  found = spans.find_token_spans(*flattened(blocks), answers)
  expected = one_by_one(blocks, answers)
  assert list(zip(*map(np.ndarray.tolist, found), strict=True)) == expected


@pytest.mark.parametrize(
  ("span", "widened"),
  [((0, 1), (0, 1)), ((1, 2), (1, 4)), ((2, 3), (1, 4)), ((4, 5), (4, 5))],
)
def test_widen_to_words(span, widened):
  # to play ##gro ##und now
  continuation = np.array([False, False, True, True, False])
  assert spans.widen_to_words(*span, continuation) == widened
