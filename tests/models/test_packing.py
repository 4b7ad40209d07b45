"""Rows hold each sequence once, whole, and few rows are needed."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from realm_jax.models.packing import TokenRows, lay_out, plan_rows
from realm_jax.models.sequences import NO_SEQUENCE

ROW = 12


@given(
  st.integers(1, 3),
  st.lists(st.integers(0, ROW), min_size=1, max_size=20),
  st.integers(0, 2),
)
def test_every_sequence_lies_whole_in_its_group(groups, lengths, spare):
  size = len(lengths)
  all_lengths = np.array([np.roll(lengths, g) for g in range(groups)])
  token_ids = np.zeros((groups * size, ROW), np.int32)
  for number, length in enumerate(all_lengths.reshape(-1)):
    token_ids[number, :length] = 1 + 100 * number + np.arange(length)
  plan = plan_rows(all_lengths, ROW)
  num_rows = plan.num_rows + spare
  packed = lay_out(
    plan,
    TokenRows(token_ids, np.arange(len(token_ids), dtype=np.uint32)),
    num_rows=num_rows,
  )

  assert packed.token_ids.shape == (groups * num_rows, ROW)
  assert np.count_nonzero(packed.token_ids) == all_lengths.sum()
  for number, length in enumerate(all_lengths.reshape(-1).tolist()):
    group, local = divmod(number, size)
    rows = slice(group * num_rows, (group + 1) * num_rows)
    start = packed.starts[group, local]
    # A sequence lies in one row.
    if length:
      assert start // ROW == (start + length - 1) // ROW
    place = slice(start, start + length)
    of_group = [part[rows].reshape(-1)[place] for part in packed[:3]]
    np.testing.assert_array_equal(of_group[0], token_ids[number, :length])
    np.testing.assert_array_equal(of_group[1], local)
    np.testing.assert_array_equal(of_group[2], np.arange(length))
  assert (packed.sequence == NO_SEQUENCE).sum() == (packed.token_ids == 0).sum()


@given(st.lists(st.integers(1, ROW), min_size=1, max_size=60))
def test_two_rows_that_fit_in_one_are_not_left(lengths):
  plan = plan_rows(np.array([lengths]), ROW)
  used = np.bincount(plan.row[0], weights=lengths, minlength=plan.num_rows)
  assert used.max() <= ROW
  # Best fit leaves at most one row half empty.
  assert (used <= ROW / 2).sum() <= 1
