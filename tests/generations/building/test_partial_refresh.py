"""Which blocks are embedded again, and that no vector grows too old."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from realm_jax.generations.building.partial_refresh import (
  PartialRefresh,
  choose_rows,
)


def _choose(config=None, **changes):
  count = len(changes.get("ages", np.zeros(12)))
  values = {
    "costs": np.full(count, 10),
    "ages": np.full(count, 5),
    "required": np.zeros(count, bool),
    "interval_steps": 10,
    "seed": 0,
  }
  chosen = choose_rows(config or PartialRefresh(), **(values | changes))
  return np.flatnonzero(chosen).tolist()


def test_the_oldest_are_chosen_up_to_the_fraction_of_tokens():
  ages = np.array([0, 5, 10, 15, 20, 25, 26, 27, 28, 29, 3, 4])
  # A third of the 120 tokens.
  assert _choose(ages=ages) == [6, 7, 8, 9]
  # A third of 153: the oldest rows take 43, and the next does not fit.
  costs = np.full(12, 10)
  costs[9] = 43
  assert _choose(ages=ages, costs=costs) == [9]


def test_of_rows_of_one_age_a_random_part_is_chosen():
  some, others = (_choose(seed=seed) for seed in (0, 1))
  assert len(some) == len(others) == 4
  assert some != others


def test_required_and_overdue_rows_are_chosen_whatever_they_cost():
  required = np.arange(12) < 7
  assert _choose(required=required) == list(range(7))
  # Five of 12 rows are older than 30 steps, and four would fit.
  ages = np.where(np.arange(12) < 5, 61, 0)
  assert _choose(ages=ages) == list(range(5))


def test_where_only_the_corpus_has_changed_old_vectors_stay():
  required = np.arange(12) < 1
  ages = np.arange(12)
  assert _choose(required=required, ages=ages, interval_steps=0) == [0]
  config = PartialRefresh(max_age_steps=10)
  rows = _choose(config, required=required, ages=ages, interval_steps=0)
  assert rows == [0, 11]


@given(
  num_blocks=st.integers(30, 80),
  fraction=st.floats(0.2, 0.8),
  generations=st.floats(1.5, 4.0),
  seed=st.integers(0, 99),
)
def test_over_many_generations_no_vector_grows_too_old_for_the_same_cost(
  num_blocks, fraction, generations, seed
):
  rng = np.random.default_rng(seed)
  interval = 10
  costs = rng.integers(8, 17, num_blocks)
  bound = round(generations / fraction * interval)
  config = PartialRefresh(fraction=fraction, max_age_steps=bound)
  ages = np.zeros(num_blocks, int)
  for generation in range(30):
    ages += interval
    rows = choose_rows(
      config,
      costs=costs,
      ages=ages,
      required=np.zeros(num_blocks, bool),
      interval_steps=interval,
      seed=generation,
    )
    ages[rows] = 0
    assert ages.max() <= bound
    # Overdue rows exceed the budget by at most the rows that did not fit in the
    # generations before, one in each.
    rounding = bound // interval * costs.max()
    assert costs[rows].sum() <= fraction * costs.sum() + rounding


def test_without_a_bound_it_is_what_the_corpus_takes():
  assert PartialRefresh(fraction=0.25).age_limit(10) == 40
  assert PartialRefresh(fraction=0.25, max_age_steps=33).age_limit(10) == 33


@pytest.mark.parametrize(
  "given, message",
  [
    ({"fraction": 0.0}, "fraction=0.0"),
    ({"fraction": 1.0}, "fraction=1.0"),
    ({"max_age_steps": 0}, "max_age_steps=0"),
    ({"full_every": 0}, "full_every=0"),
  ],
)
def test_impossible_settings_are_refused(given, message):
  with pytest.raises(ValueError, match=message):
    PartialRefresh(**given)
