"""Which blocks are embedded anew, and that none grows too old."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from realm_jax.generations.build.partial_refresh import (
  PartialRefresh,
  choose,
  gains,
)


def _choose(config=None, **changes):
  count = len(changes.get("ages", np.zeros(12)))
  values = {
    "costs": np.full(count, 10),
    "ages": np.full(count, 5),
    "must": np.zeros(count, bool),
    "gain": np.zeros(count),
    "interval": 10,
  }
  return choose(config or PartialRefresh(), **(values | changes))


def test_the_most_is_had_for_the_tokens():
  gain = np.array([9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 20, 0])
  # A third of 230 tokens; row 10 gains more than any, and costs too much.
  costs = np.full(12, 10)
  costs[10] = 120
  config = PartialRefresh(max_age_steps=100)
  choice = _choose(config, gain=gain, costs=costs)
  assert np.flatnonzero(choice.rows).tolist() == [0, 1, 2, 3, 4, 5, 6]
  assert choice.due == 0


def test_what_must_be_is_whatever_it_costs():
  must = np.arange(12) < 7
  choice = _choose(must=must, gain=np.arange(12.0))
  np.testing.assert_array_equal(choice.rows, must)
  # Too old are those of more than 30 steps: of 12 rows 5, where 4 fit.
  ages = np.where(np.arange(12) < 5, 61, 0)
  choice = _choose(ages=ages, gain=np.arange(12.0))
  np.testing.assert_array_equal(choice.rows, ages == 61)
  assert choice.due == 5


def test_who_is_retrieved_and_moved_comes_first():
  retrieved, moved = np.array([0.0, 8.0, 8.0]), np.array([1.0, 1.0, 2.0])
  settings = {
    "retrieved": retrieved,
    "moved": moved,
    "ages": np.array([30, 0, 10]),
    "seed": 0,
  }
  assert np.argsort(gains(PartialRefresh(), **settings)).tolist() == [0, 1, 2]
  by_age = PartialRefresh(by_retrieved=False, by_movement=False)
  assert np.argsort(gains(by_age, **settings)).tolist() == [1, 2, 0]


@given(
  num_blocks=st.integers(30, 80),
  fraction=st.floats(0.2, 0.8),
  generations=st.floats(1.5, 4.0),
  seed=st.integers(0, 99),
)
def test_over_many_generations_none_grows_too_old_nor_any_takes_more(
  num_blocks, fraction, generations, seed
):
  rng = np.random.default_rng(seed)
  interval = 10
  costs = rng.integers(8, 17, num_blocks)
  # Whatever is gained, some rows are never worth it.
  gain = rng.random(num_blocks) ** 4
  bound = round(generations / fraction * interval)
  config = PartialRefresh(
    fraction=fraction, sample_fraction=0.0, max_age_steps=bound
  )
  ages = np.zeros(num_blocks, int)
  for _ in range(30):
    ages += interval
    choice = choose(
      config,
      costs=costs,
      ages=ages,
      must=np.zeros(num_blocks, bool),
      gain=gain,
      interval=interval,
    )
    ages[choice.rows] = 0
    assert ages.max() <= bound
    # More by no more than the rows that just did not fit, one a generation.
    rounding = bound // interval * costs.max()
    assert costs[choice.rows].sum() <= fraction * costs.sum() + rounding


def test_without_a_bound_it_is_what_the_corpus_takes():
  assert PartialRefresh(fraction=0.25).bound(10) == 40
  assert PartialRefresh(fraction=0.25, max_age_steps=33).bound(10) == 33


def test_a_sample_is_of_its_size_and_another_each_time():
  config = PartialRefresh(sample_fraction=0.1, sample_blocks=30)
  one, two = config.sample(200, seed=1), config.sample(200, seed=2)
  assert len(one) == len(set(one.tolist())) == 20
  assert one.tolist() == sorted(one.tolist()) != two.tolist()
  assert len(config.sample(1000, seed=1)) == 30


@pytest.mark.parametrize(
  "given, message",
  [
    ({"fraction": 0.0}, "fraction=0.0"),
    ({"fraction": 1.0}, "fraction=1.0"),
    ({"fraction": 0.1, "sample_fraction": 0.1}, "sample_fraction=0.1"),
    ({"max_age_steps": 0}, "max_age_steps=0"),
    ({"full_every": 0}, "full_every=0"),
  ],
)
def test_impossible_settings_are_refused(given, message):
  with pytest.raises(ValueError, match=message):
    PartialRefresh(**given)
