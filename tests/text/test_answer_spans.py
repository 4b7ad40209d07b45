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
