"""The order of records: a permutation in every epoch, from any position."""

import hypothesis
import numpy as np
from hypothesis import strategies as st

from realm_jax.inputs.sources import record_indices


@hypothesis.given(
  size=st.integers(1, 700),
  seed=st.integers(-(2**63), 2**64),
  epoch=st.integers(0, 2**30),
)
def test_every_epoch_reads_each_record_once(size, seed, epoch):
  positions = epoch * size + np.arange(size)
  indices = record_indices(positions, size=size, seed=seed)
  np.testing.assert_array_equal(np.sort(indices), np.arange(size))


@hypothesis.given(st.lists(st.integers(0, 5000), min_size=1, max_size=50))
def test_a_position_holds_the_same_record_whatever_else_is_read(positions):
  together = record_indices(np.array(positions), size=137, seed=3)
  alone = [
    record_indices(np.array([p]), size=137, seed=3).item() for p in positions
  ]
  np.testing.assert_array_equal(together, alone)


def test_unshuffled_epochs_follow_the_source():
  indices = record_indices(np.arange(7), size=3, seed=5, shuffle=False)
  np.testing.assert_array_equal(indices, [0, 1, 2, 0, 1, 2, 0])


def test_all_orders_of_a_tiny_source_are_about_equally_likely():
  """24 orders over 12,000 epochs: each 500 times, give or take 5 sigma."""
  orders = record_indices(np.arange(4 * 12_000), size=4, seed=1).reshape(-1, 4)
  _, counts = np.unique(orders, axis=0, return_counts=True)
  assert len(counts) == 24
  assert np.all(np.abs(counts - 500) < 5 * np.sqrt(500))
