"""Which blocks become candidates, against lists filtered in a loop."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from realm_jax.retrieval.candidate_rows import with_null, without_source


def test_the_source_is_dropped_by_hand():
  rows = np.array([[4, 7, 2], [4, 7, 2], [4, 7, 2], [4, 7, 2]])
  kept = without_source(rows, np.array([4, 2, 9, -1]))
  np.testing.assert_array_equal(kept, [[7, 2], [4, 7], [4, 7], [4, 7]])


@st.composite
def _found(draw):
  n = draw(st.integers(2, 6))
  found = [
    draw(st.lists(st.integers(0, 9), min_size=n, max_size=n, unique=True))
    for _ in range(draw(st.integers(1, 5)))
  ]
  sources = [draw(st.integers(-1, 9)) for _ in found]
  return np.array(found), np.array(sources)


@given(_found())
def test_it_never_stays_and_the_order_does(example):
  rows, sources = example
  kept = without_source(rows, sources)
  for b, source in enumerate(sources):
    others = [row for row in rows[b] if row != source]
    np.testing.assert_array_equal(kept[b], others[: rows.shape[1] - 1])


def test_the_null_block_is_candidate_0():
  np.testing.assert_array_equal(
    with_null(np.array([[5, 6], [0, 1]])), [[-1, 5, 6], [-1, 0, 1]]
  )
