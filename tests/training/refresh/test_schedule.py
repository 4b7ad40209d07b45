"""Which generation each step searches."""

import dataclasses
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realm_jax.generations.store.manifest import DamagedGenerationError
from realm_jax.indexes.protocol import IndexCrashedError
from realm_jax.training.refresh import (
  GenerationSchedule,
  RefreshConfig,
  StaleIndexError,
)


@dataclasses.dataclass(frozen=True)
class Loaded:
  """A generation of which only the steps matter here."""

  step: int
  oldest: int | None = None

  @property
  def oldest_step(self):
    return self.step if self.oldest is None else self.oldest


class ShelfWatcher:
  """A watcher over a set of steps instead of a directory."""

  def __init__(self, steps=()):
    self.steps = set(steps)
    self.used = []

  def newest(self):
    return Loaded(max(self.steps)) if self.steps else None

  def wait_for(self, step, *, timeout):
    del timeout
    if step not in self.steps:
      raise TimeoutError(step)
    return Loaded(step)

  def has_later(self, step):
    return max(self.steps, default=-1) > step

  def in_use(self, step):
    self.used.append(step)


def _waiting(lag, every, *, available=range(2000)):
  return GenerationSchedule(
    ShelfWatcher(available),
    RefreshConfig(wait=True, lag_steps=lag),
    save_every_steps=every,
  )


def test_waiting_uses_checkpoint_c_from_exactly_c_plus_lag():
  schedule = _waiting(lag=3, every=10)
  used = [schedule.start(0, None).step]
  used += [schedule.at(step).step for step in range(1, 30)]
  # Checkpoint 10 from step 13 on, checkpoint 20 from step 23 on.
  assert used == [0] * 13 + [10] * 10 + [20] * 7
  assert schedule.swaps == 2


@given(
  lag=st.integers(1, 40), every=st.integers(1, 25), start=st.integers(0, 120)
)
def test_waiting_is_a_function_of_the_step_alone(lag, every, start):
  # A run that is resumed anywhere uses what an unbroken run used.
  whole = _waiting(lag, every)
  used = [whole.start(0, None).step]
  used += [whole.at(step).step for step in range(1, 150)]
  resumed = _waiting(lag, every)
  again = [resumed.start(start, used[start]).step]
  again += [resumed.at(step).step for step in range(start + 1, 150)]
  assert again == used[start:]
  for step, generation in enumerate(used):
    assert generation % every == 0
    assert generation == 0 or generation + lag <= step
    assert generation + every + lag > step


def test_what_the_builder_has_ready_early_is_not_used_early():
  schedule = _waiting(lag=5, every=10, available=[0, 10, 20, 30])
  schedule.start(0, None)
  assert [schedule.at(step).step for step in (10, 14, 15)] == [0, 0, 10]


def test_a_resumed_run_begins_with_the_recorded_generation():
  watcher = ShelfWatcher([0, 10, 20])
  schedule = GenerationSchedule(watcher, RefreshConfig(), save_every_steps=10)
  assert schedule.start(25, 10).step == 10
  # And without waiting goes on with the newest at the next step.
  assert schedule.at(26).step == 20
  assert watcher.used == [10, 20]


def test_the_newest_is_used_as_it_comes_and_never_an_older_one():
  watcher = ShelfWatcher([0])
  schedule = GenerationSchedule(watcher, RefreshConfig(), save_every_steps=10)
  assert schedule.start(0, None).step == 0
  assert schedule.at(1).step == 0
  watcher.steps.add(20)
  assert schedule.at(2).step == 20
  watcher.steps = {10}
  assert schedule.at(3).step == 20
  assert schedule.swaps == 1


def test_without_refresh_the_first_stays():
  watcher = ShelfWatcher([0, 10])
  schedule = GenerationSchedule(
    watcher,
    RefreshConfig(refresh=False, max_staleness_steps=5, on_stale="fail"),
    save_every_steps=10,
  )
  schedule.start(0, None)
  assert {schedule.at(step).step for step in range(1, 100)} == {0}


def test_a_stale_index_fails_the_run_when_told_to():
  schedule = GenerationSchedule(
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
  schedule = GenerationSchedule(
    watcher,
    RefreshConfig(max_staleness_steps=30, on_stale="fail"),
    save_every_steps=10,
  )
  schedule.start(0, None)
  watcher.newest = lambda: Loaded(40, oldest=15)
  assert schedule.at(45).step == 40
  with pytest.raises(StaleIndexError, match=r"generation 40 is 31 steps old"):
    schedule.at(46)


def test_a_stale_index_warns_once_a_while(caplog):
  schedule = GenerationSchedule(
    ShelfWatcher([0]),
    RefreshConfig(max_staleness_steps=10),
    save_every_steps=10,
  )
  schedule.start(0, None)
  with caplog.at_level(logging.WARNING, logger="absl"):
    for step in range(1, 32):
      schedule.at(step)
  warned = [record.getMessage() for record in caplog.records]
  # At step 11, when it is first too old, and at 21 and 31.
  assert [text.split(" at step ")[1][:2] for text in warned] == [
    "11",
    "21",
    "31",
  ]


def test_a_generation_that_never_comes_is_given_up():
  schedule = GenerationSchedule(
    ShelfWatcher(),
    RefreshConfig(timeout_seconds=0.0),
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


def test_a_run_waits_for_what_is_damaged_to_be_made_again(monkeypatch):
  monkeypatch.setattr("realm_jax.training.refresh._LOOK_SECONDS", 0.0)
  schedule = GenerationSchedule(
    _DamagedWatcher(),
    RefreshConfig(wait=True, lag_steps=5),
    save_every_steps=10,
  )
  schedule.start(0, None)
  assert schedule.at(15).step == 10


def test_a_run_does_not_begin_with_what_is_damaged():
  schedule = GenerationSchedule(
    _DamagedWatcher(), RefreshConfig(), save_every_steps=10
  )
  with pytest.raises(DamagedGenerationError, match="10 is damaged"):
    schedule.start(15, 10)


def test_a_run_whose_generation_is_gone_goes_on_with_a_later_one(caplog):
  schedule = GenerationSchedule(
    ShelfWatcher([0, 40]), RefreshConfig(), save_every_steps=10
  )
  with caplog.at_level(logging.WARNING, logger="absl"):
    assert schedule.start(25, 20).step == 40
  assert "generation 20 is gone: going on with generation 40" in caplog.text


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


def test_a_run_whose_generation_is_damaged_goes_on_with_a_later_one(
  monkeypatch, caplog
):
  monkeypatch.setattr("realm_jax.training.refresh._LOOK_SECONDS", 0.0)
  schedule = GenerationSchedule(
    _LaterWatcher(), RefreshConfig(), save_every_steps=10
  )
  with caplog.at_level(logging.WARNING, logger="absl"):
    assert schedule.start(25, 20).step == 40
  assert "generation 20 is damaged: going on with generation 40" in caplog.text


@pytest.mark.parametrize("change", [{"wait": True}, {"refresh": False}])
def test_a_run_that_wants_its_own_does_not_begin_with_what_is_damaged(change):
  schedule = GenerationSchedule(
    _LaterWatcher(), RefreshConfig(**change), save_every_steps=10
  )
  with pytest.raises(DamagedGenerationError, match="20 is damaged"):
    schedule.start(25, 20)


@pytest.mark.parametrize("refresh", [True, False])
def test_only_a_run_that_follows_waits_for_a_fresher_generation(
  refresh, monkeypatch, caplog
):
  monkeypatch.setattr("realm_jax.training.refresh._FRESHER_SECONDS", 0.1)
  monkeypatch.setattr("realm_jax.training.refresh._LOOK_SECONDS", 0.0)
  config = RefreshConfig(
    refresh=refresh, max_staleness_steps=5, on_stale="fail"
  )
  schedule = GenerationSchedule(ShelfWatcher([0]), config, save_every_steps=10)
  with caplog.at_level(logging.INFO, logger="absl"):
    schedule.start(100, 0)
  waits = [r for r in caplog.records if "waiting up to" in r.getMessage()]
  assert len(waits) == refresh


@pytest.mark.parametrize("change", [{"wait": True}, {"refresh": False}])
def test_a_run_that_wants_its_own_generation_waits_for_it(change):
  config = RefreshConfig(timeout_seconds=0.0, **change)
  schedule = GenerationSchedule(
    ShelfWatcher([0, 40]), config, save_every_steps=10
  )
  with pytest.raises(TimeoutError, match="generation 20"):
    schedule.start(25, 20)


@pytest.mark.parametrize(
  ("given", "message"),
  [
    ({"lag_steps": 0}, "lag_steps=0.*1 or more"),
    ({"on_stale": "ignore"}, "on_stale='ignore'.*'warn' or 'fail'"),
  ],
)
def test_impossible_settings_are_refused(given, message):
  with pytest.raises(ValueError, match=message):
    RefreshConfig(**given)


class _Earlier:
  """Goes back by one step."""

  def instead_of(self, generation, error):
    return Loaded(generation.step - 1)


def test_a_crashed_generation_is_not_taken_again():
  watcher = ShelfWatcher({0, 5})
  schedule = GenerationSchedule(
    watcher, RefreshConfig(), save_every_steps=5, crash_policy=_Earlier()
  )
  schedule.start(0, None)
  assert schedule.at(6).step == 5
  assert schedule.after_crash(IndexCrashedError("gone")).step == 4
  assert watcher.used[-1] == 4
  assert schedule.at(7).step == 4
  watcher.steps.add(10)
  assert schedule.at(11).step == 10


def test_without_a_policy_a_crash_ends_the_run():
  schedule = GenerationSchedule(
    ShelfWatcher({0}), RefreshConfig(), save_every_steps=5
  )
  schedule.start(0, None)
  with pytest.raises(IndexCrashedError, match="gone"):
    schedule.after_crash(IndexCrashedError("gone"))


def test_an_unknown_answer_to_crashes_is_refused():
  with pytest.raises(ValueError, match="on_crash='never'; want one of exact"):
    RefreshConfig(on_crash="never")
