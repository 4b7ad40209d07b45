"""Cutting into blocks, on numbers worked out by hand."""

import itertools

import hypothesis
import numpy as np
from hypothesis import strategies as st

from realm_jax.corpus.splitting import align_sentences, pack_sentences


@hypothesis.given(
  st.lists(st.integers(1, 10), min_size=1, max_size=30), st.integers(10, 30)
)
def test_packing_fills_and_never_overflows(sizes, capacity):
  bounds = pack_sentences(np.array(sizes), capacity=capacity)
  blocks = [sizes[a:b] for a, b in itertools.pairwise(bounds)]
  assert [size for block in blocks for size in block] == sizes
  assert all(0 < sum(block) <= capacity for block in blocks)
  for block, following in itertools.pairwise(blocks):
    assert sum(block) + following[0] > capacity


def test_sentences_in_tokens():
  for sentences, tokens, token_ranges, byte_ranges in (
    # Bytes 3…5 have no token; nor has the end, 9…10.
    (
      [[0, 2], [3, 5], [6, 8], [9, 10]],
      [[0, 2], [6, 8]],
      [[0, 1], [1, 2]],
      [[0, 2], [3, 10]],
    ),
    # The first two share a token.
    (
      [[0, 4], [5, 9], [10, 12]],
      [[0, 2], [3, 6], [7, 9], [10, 12]],
      [[0, 3], [3, 4]],
      [[0, 9], [10, 12]],
    ),
  ):
    aligned = align_sentences(np.array(sentences), np.array(tokens))
    assert aligned.token_ranges.tolist() == token_ranges
    assert aligned.byte_ranges.tolist() == byte_ranges
