"""Sentences are cut into windows, and windows into rows of fixed lengths."""

import hypothesis
import numpy as np
from hypothesis import strategies as st

from realm_jax.tagging.windows import (
  Window,
  fill,
  windows,
)


def test_a_long_sentence_is_cut_in_the_middle_of_what_windows_share():
  # Each window but the last begins 6 = 8 - 8 // 4 tokens after the one before;
  # the last ends with the sentence.
  assert list(windows(100, 117, capacity=8)) == [
    Window(100, 108, 100, 107),
    Window(106, 114, 107, 111),
    Window(109, 117, 111, 117),
  ]


@hypothesis.given(st.integers(1, 300), st.integers(4, 60))
def test_every_token_has_one_label_and_context(size, capacity):
  found = list(windows(0, size, capacity=capacity))
  assert [window.first for window in found[1:]] == [w.last for w in found[:-1]]
  assert (found[0].first, found[-1].last) == (0, size)
  for start, limit, first, last in found:
    assert limit - start == min(size, capacity)
    assert start <= first < last <= limit
    context = capacity // 8
    assert first - start >= context or start == 0
    assert limit - last >= context or limit == size


def test_rows_are_padded_and_batches_filled_up():
  batch = [Window(1, 3, 1, 3), Window(0, 3, 0, 3)]
  rows = fill(batch, np.array([7, 8, 9]), shape=(3, 6), cls_id=2, sep_id=3)
  assert rows.tolist() == [
    [2, 8, 9, 3, 0, 0],
    [2, 7, 8, 9, 3, 0],
    [2, 3, 0, 0, 0, 0],
  ]
