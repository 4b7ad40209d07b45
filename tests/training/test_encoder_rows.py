"""Which blocks become candidates, against lists filtered in a loop."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from realm_jax.training.encoder_rows import without_source


@st.composite
def _found(draw):
  n = draw(st.integers(2, 6))
  found = [
    draw(st.lists(st.integers(0, 9), min_size=n, max_size=n, unique=True))
    for _ in range(draw(st.integers(1, 5)))
  ]
  sources = draw(st.sets(st.integers(0, 9)))
  return np.array(found), sources


@given(_found())
def test_it_never_stays_and_the_order_does(example):
  rows, sources = example
  num_kept = rows.shape[1] - 1
  is_source = np.isin(rows, list(sources))
  kept = without_source(rows, is_source, num_kept=num_kept)
  for b in range(len(rows)):
    others = [row for row in rows[b] if row not in sources] + num_kept * [-1]
    np.testing.assert_array_equal(kept[b], others[:num_kept])
