"""Which lengths batches have, and what goes into them."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from realm_jax.corpus.store import NULL_ROW
from realm_jax.generations.build.length_buckets import (
  choose_lengths,
  length_batches,
  round_up,
)


@given(
  lengths=st.lists(st.integers(3, 60), min_size=1, max_size=60),
  most=st.integers(1, 4),
)
def test_no_other_lengths_leave_less_padding(lengths, most):
  lengths = np.array(lengths)
  chosen = choose_lengths(lengths, longest=60, most=most, padding=1.0)
  steps = sorted({*range(8, 60, 8), 60})
  fewest = min(
    round_up(lengths, to).sum()
    for count in range(1, most + 1)
    for to in itertools.combinations(steps, count)
    if to[-1] >= lengths.max()
  )
  assert len(chosen) <= most
  assert round_up(lengths, chosen).sum() == fewest


def test_no_more_lengths_than_it_takes():
  lengths = np.repeat([16, 31, 32], 100)
  assert choose_lengths(lengths, longest=64) == (16, 32)
  assert choose_lengths(lengths, longest=64, padding=2.0) == (32,)


def test_at_least_one_length_is_asked_for():
  with pytest.raises(ValueError, match="most=0"):
    choose_lengths(np.array([4]), longest=8, most=0)


@given(
  lengths=st.lists(st.integers(3, 64), min_size=1, max_size=300),
  tokens_per_batch=st.integers(1, 700),
  most=st.integers(1, 8),
  multiple=st.integers(1, 8),
)
def test_every_row_is_in_one_batch_that_is_long_enough(
  lengths, tokens_per_batch, most, multiple
):
  lengths = np.array(lengths)
  given_rows = 7 + np.arange(len(lengths))
  batches = list(
    length_batches(
      given_rows,
      lengths,
      to=choose_lengths(lengths, longest=64, most=most),
      tokens_per_batch=tokens_per_batch,
      multiple=multiple,
    )
  )
  rows = np.concatenate([rows for _, rows in batches])
  assert sorted(rows[rows != NULL_ROW].tolist()) == given_rows.tolist()
  for length, rows in batches:
    assert length <= 64 and len(rows) % multiple == 0
    assert (lengths[rows[rows != NULL_ROW] - 7] <= length).all()
    assert len(rows) * length <= max(tokens_per_batch, multiple * length)
  # Only the last batch pads, and each length has one shape.
  assert all((rows != NULL_ROW).all() for _, rows in batches[:-1])
  shapes = {(length, len(rows)) for length, rows in batches}
  assert len(shapes) == len({length for length, _ in batches})


def test_a_length_beyond_the_longest_is_cut_there():
  to = choose_lengths(np.array([60, 70]), longest=61)
  assert to[-1] == 61
  assert round_up(np.array([70]), to).tolist() == [61]


def test_lengths_as_of_real_paragraphs_leave_little_padding():
  # 8 to 288, most of them full, in shards of ten thousand.
  rng = np.random.default_rng(0)
  lengths = np.minimum(rng.lognormal(5.2, 0.6, 20_000).astype(int) + 8, 288)
  to = choose_lengths(lengths, longest=288)
  assert len(to) <= 16
  computed = sum(
    length * len(batch)
    for rows in np.split(np.arange(20_000), 2)
    for length, batch in length_batches(
      rows, lengths[rows], to=to, tokens_per_batch=16_384
    )
  )
  assert computed < 1.08 * lengths.sum()
