"""How old a generation may be."""

import logging

import pytest

from realm_jax.training.config import RefreshConfig
from realm_jax.training.refresh.schedule import StaleIndexError
from tests.training.refresh.schedules import (
  Loaded,
  ShelfWatcher,
  make_schedule,
)

pytestmark = pytest.mark.usefixtures("short_waits")


def test_without_refresh_the_first_stays():
  watcher = ShelfWatcher([0, 10])
  schedule = make_schedule(
    watcher,
    RefreshConfig(
      swap_generations=False, max_staleness_steps=5, on_stale="fail"
    ),
    save_every_steps=10,
  )
  schedule.start(0, None)
  assert {schedule.at(step).step for step in range(1, 100)} == {0}


def test_a_stale_index_fails_the_run_when_told_to():
  schedule = make_schedule(
    ShelfWatcher([0]),
    RefreshConfig(max_staleness_steps=30, on_stale="fail"),
    save_every_steps=10,
  )
  schedule.start(0, None)
  assert schedule.at(30).step == 0
  with pytest.raises(
    StaleIndexError, match=r"generation 0 is 31 steps old.*=30"
  ):
    schedule.at(31)


def test_staleness_counts_from_the_oldest_vector():
  watcher = ShelfWatcher([0])
  schedule = make_schedule(
    watcher,
    RefreshConfig(max_staleness_steps=30, on_stale="fail"),
    save_every_steps=10,
  )
  schedule.start(0, None)
  watcher.newest = lambda: Loaded(40, oldest=15)
  assert schedule.at(45).step == 40
  with pytest.raises(StaleIndexError, match=r"generation 40 is 31 steps old"):
    schedule.at(46)


@pytest.mark.parametrize(
  ("limit", "warned"),
  [
    # Ten times the distance of checkpoints.
    (None, "generation 0 is 101 steps old at step 101, above MAX_STALENESS_"),
    (0, ""),
  ],
)
def test_a_run_warns_of_a_stale_index_by_default(caplog, limit, warned):
  schedule = make_schedule(
    ShelfWatcher([0]),
    RefreshConfig(max_staleness_steps=limit),
    save_every_steps=10,
  )
  schedule.start(0, None)
  with caplog.at_level(logging.WARNING, logger="absl"):
    for step in (1, 100):
      schedule.at(step)
    assert not caplog.records
    schedule.at(101)
  assert warned in caplog.text
  assert len(caplog.records) == bool(warned)


@pytest.mark.parametrize("refresh", [True, False])
def test_only_a_run_that_follows_waits_for_a_fresher_generation(
  refresh, caplog
):
  config = RefreshConfig(
    swap_generations=refresh, max_staleness_steps=5, on_stale="fail"
  )
  schedule = make_schedule(ShelfWatcher([0]), config, save_every_steps=10)
  with caplog.at_level(logging.INFO, logger="absl"):
    schedule.start(100, 0)
  waits = [r for r in caplog.records if "waiting up to" in r.getMessage()]
  assert len(waits) == refresh
