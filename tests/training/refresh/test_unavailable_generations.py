"""What a run does whose generation is not there, damaged or gone."""

import logging
import threading

import pytest

from realm_jax.generations.store.manifest import DamagedGenerationError
from realm_jax.training.config import RefreshConfig
from realm_jax.training.refresh.schedule import WaitPreemptedError
from tests.training.refresh.schedules import (
  Loaded,
  ShelfWatcher,
  make_schedule,
)

pytestmark = pytest.mark.usefixtures("short_waits")


def test_a_generation_that_never_comes_is_given_up():
  schedule = make_schedule(
    ShelfWatcher(),
    RefreshConfig(timeout_seconds=0.01),
    save_every_steps=10,
  )
  with pytest.raises(TimeoutError, match=r"generation 0.*build_index"):
    schedule.start(0, None)


class _DamagedWatcher(ShelfWatcher):
  """Generation 10 is damaged until it was asked for twice."""

  def __init__(self):
    super().__init__([0])
    self.refusals = 0

  def wait_for(self, step, *, timeout):
    if step == 10 and self.refusals < 2:
      self.refusals += 1
      raise DamagedGenerationError("generation 10 is damaged")
    self.steps.add(step)
    return super().wait_for(step, timeout=timeout)


def test_a_run_waits_for_what_is_damaged_to_be_made_again():
  schedule = make_schedule(
    _DamagedWatcher(),
    RefreshConfig(wait_for_generations=True, lag_steps=5),
    save_every_steps=10,
  )
  schedule.start(0, None)
  assert schedule.at(15).step == 10


def test_a_run_does_not_begin_with_what_is_damaged():
  schedule = make_schedule(
    _DamagedWatcher(), RefreshConfig(), save_every_steps=10
  )
  with pytest.raises(DamagedGenerationError, match="10 is damaged"):
    schedule.start(15, 10)


def test_a_run_whose_generation_is_gone_goes_on_with_a_later_one(caplog):
  schedule = make_schedule(
    ShelfWatcher([0, 40]), RefreshConfig(), save_every_steps=10
  )
  with caplog.at_level(logging.WARNING, logger="absl"):
    assert schedule.start(25, 20).step == 40
  assert "generation 20 is gone: continuing with generation 40" in caplog.text


class _LaterWatcher(ShelfWatcher):
  """Generation 20 is damaged; 40 is there, and loaded at the third look."""

  def __init__(self):
    super().__init__([20, 40])
    self.looks = 0

  def newest(self):
    self.looks += 1
    return Loaded(40) if self.looks > 2 else None

  def wait_for(self, step, *, timeout):
    if step == 20:
      raise DamagedGenerationError("generation 20 is damaged")
    return super().wait_for(step, timeout=timeout)


def test_a_run_whose_generation_is_damaged_goes_on_with_a_later_one(caplog):
  schedule = make_schedule(
    _LaterWatcher(), RefreshConfig(), save_every_steps=10
  )
  with caplog.at_level(logging.WARNING, logger="absl"):
    assert schedule.start(25, 20).step == 40
  assert (
    "generation 20 is damaged: continuing with generation 40" in caplog.text
  )


@pytest.mark.parametrize(
  "change", [{"wait_for_generations": True}, {"swap_generations": False}]
)
def test_a_run_that_wants_its_own_does_not_begin_with_what_is_damaged(change):
  schedule = make_schedule(
    _LaterWatcher(), RefreshConfig(**change), save_every_steps=10
  )
  with pytest.raises(DamagedGenerationError, match="20 is damaged"):
    schedule.start(25, 20)


@pytest.mark.parametrize(
  "change", [{"wait_for_generations": True}, {"swap_generations": False}]
)
def test_a_run_that_wants_its_own_generation_waits_for_it(change):
  config = RefreshConfig(timeout_seconds=0.01, **change)
  schedule = make_schedule(ShelfWatcher([0, 40]), config, save_every_steps=10)
  with pytest.raises(TimeoutError, match="generation 20"):
    schedule.start(25, 20)


def test_a_preempted_run_does_not_wait_for_a_generation():
  preempted = threading.Event()
  preempted.set()
  schedule = make_schedule(
    ShelfWatcher(), RefreshConfig(), preempted=preempted, save_every_steps=5
  )
  with pytest.raises(WaitPreemptedError):
    schedule.start(0, None)
