"""Rows hold each sequence once, whole."""

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from realm_jax.models import packing
from realm_jax.models.packing import TokenSequences
from realm_jax.models.sequences import NO_SEQUENCE

ROW, GROUPS, SIZE = 12, 2, 12


# Compiled once: lengths of zero stand for fewer sequences.
@jax.jit
def _lay_out(token_ids, numbers):
  rows = TokenSequences(token_ids, numbers)
  lengths = packing.lengths_of(rows, groups=GROUPS)
  plan = packing.plan_bins(lengths, bin_length=ROW, num_bins=SIZE)
  return plan, packing.lay_out(plan, rows, num_bins=SIZE)


@settings(deadline=None)
@given(
  st.lists(st.integers(0, ROW), min_size=GROUPS * SIZE, max_size=GROUPS * SIZE)
)
def test_every_sequence_lies_whole_in_its_group(lengths):
  token_ids = np.zeros((GROUPS * SIZE, ROW), np.int32)
  for number, length in enumerate(lengths):
    token_ids[number, :length] = 1 + 100 * number + np.arange(length)
  plan, packed = jax.device_get(
    _lay_out(token_ids, np.arange(len(token_ids), dtype=np.uint32))
  )

  assert np.count_nonzero(packed.token_ids) == sum(lengths)
  for number, length in enumerate(lengths):
    group, local = divmod(number, SIZE)
    rows = slice(group * SIZE, (group + 1) * SIZE)
    start = packed.starts[group, local]
    # A sequence lies in one row, of those that are needed.
    if length:
      assert start // ROW == (start + length - 1) // ROW
      assert start // ROW < plan.needed_bins[group]
    place = slice(start, start + length)
    of_group = [part[rows].reshape(-1)[place] for part in packed[:3]]
    np.testing.assert_array_equal(of_group[0], token_ids[number, :length])
    np.testing.assert_array_equal(of_group[1], local)
    np.testing.assert_array_equal(of_group[2], np.arange(length))
  assert (packed.sequence == NO_SEQUENCE).sum() == (packed.token_ids == 0).sum()
