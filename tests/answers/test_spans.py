"""Where answers occur in token arrays."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from realm_jax.answers import spans

BLOCKS = st.lists(
  st.lists(st.integers(1, 3), max_size=12), min_size=1, max_size=4
)
ANSWERS = st.lists(st.lists(st.integers(1, 3), max_size=4), max_size=4)


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
  tokens = np.array([*itertools.chain(*blocks)], np.int32)
  offsets = np.cumsum([0, *map(len, blocks)], dtype=np.int64)
  found = spans.find_token_spans(tokens, offsets, answers)
  assert [*zip(*map(np.ndarray.tolist, found), strict=True)] == (
    one_by_one(blocks, answers)
  )
