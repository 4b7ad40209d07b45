"""Packing inside a compiled program gives the rows of packing on the host."""

import functools

import jax
import numpy as np
import pytest

from realm_jax.models import device_packing, packing
from realm_jax.models.sequences import PAD_ID

_GROUPS, _SIZE, _LENGTH = 3, 12, 16


def _rows(seed):
  """Sequences of all lengths, among them empty and equally long ones."""
  rng = np.random.default_rng(seed)
  lengths = rng.integers(0, _LENGTH + 1, (_GROUPS, _SIZE))
  # A group of short sequences and one of long ones.
  lengths[1] = rng.integers(0, 5, _SIZE)
  lengths[2, 3:] = _LENGTH
  tokens = rng.integers(5, 100, (_GROUPS * _SIZE, _LENGTH)).astype(np.int32)
  tokens[np.arange(_LENGTH) >= lengths.reshape(-1, 1)] = PAD_ID
  numbers = rng.integers(0, 2**32, len(tokens), dtype=np.uint32)
  return packing.TokenRows(tokens, numbers), lengths


@functools.partial(jax.jit, static_argnames="num_rows")
def _packed(rows, lengths, *, num_rows):
  plan = device_packing.plan_rows(
    lengths, row_length=_LENGTH, num_rows=num_rows
  )
  laid_out = device_packing.lay_out(plan, rows, num_rows=num_rows)
  return plan.needed_rows, laid_out


def _assert_equal(found, expected):
  for name, array in found._asdict().items():
    wanted = getattr(expected, name)
    np.testing.assert_array_equal(array, wanted, err_msg=name)


@pytest.mark.parametrize("seed", range(5))
def test_rows_are_those_of_the_host(seed):
  rows, lengths = _rows(seed)
  plan = packing.plan_rows(lengths, _LENGTH)
  needed, found = _packed(rows, lengths, num_rows=_SIZE)
  assert needed.max() == plan.num_rows
  _assert_equal(found, packing.lay_out(plan, rows, num_rows=_SIZE))


def test_too_few_rows_are_known_by_the_number_that_is_needed():
  rows, lengths = _rows(0)
  enough = [
    packing.plan_rows(lengths[[group]], _LENGTH).num_rows
    for group in range(_GROUPS)
  ]
  for num_rows in (3, 8, 11):
    needed, _ = _packed(rows, lengths, num_rows=num_rows)
    np.testing.assert_array_equal(
      needed <= num_rows, np.array(enough) <= num_rows
    )
  assert max(enough) > 3


def test_padded_rows_are_those_of_the_host():
  rows, lengths = _rows(1)
  plan = packing.one_per_row(lengths, _LENGTH)
  found = device_packing.one_per_row(rows, lengths)
  _assert_equal(found, packing.lay_out(plan, rows, num_rows=_SIZE))
