"""Which generation each step searches."""

import logging
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realm_jax.generations.follow.loading import Generation
from realm_jax.generations.follow.watcher import GenerationWatcher
from realm_jax.generations.store.manifest import DamagedGenerationError
from realm_jax.indexes.protocol import IndexCrashedError
from realm_jax.training.config import RefreshConfig
from realm_jax.training.decisions import Decisions
from realm_jax.training.refresh import schedule as schedule_module
from realm_jax.training.refresh.fallback import CrashFallback
from realm_jax.training.refresh.schedule import (
  GenerationSchedule,
  StaleIndexError,
  WaitPreemptedError,
)


class Loaded(Generation):
  """A generation of which only the steps matter here."""

  def __init__(self, step, oldest=None):
    object.__setattr__(self, "step", step)
    object.__setattr__(self, "_oldest", step if oldest is None else oldest)

  @property
  def oldest_step(self):
    return self._oldest


class ShelfWatcher(GenerationWatcher):
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


class Earlier(CrashFallback):
  """Goes back by one step."""

  def __init__(self):
    pass

  def replace(self, generation, error):
    return Loaded(generation.step - 1)


@pytest.fixture(autouse=True)
def _hurry(monkeypatch):
  monkeypatch.setattr(schedule_module, "_POLL_SECONDS", 0.0)
  monkeypatch.setattr(schedule_module, "_FRESHER_SECONDS", 0.1)


def _schedule(watcher, config, *, save_every_steps, preempted=None):
  decisions = Decisions(
    preempted or threading.Event(),
    num_steps=2000,
    save_every_steps=save_every_steps,
  )
  return GenerationSchedule(
    watcher,
    config,
    every_steps=config.every_steps or save_every_steps,
    decisions=decisions,
    fallback=Earlier(),
  )


def _waiting(lag, every, *, available=range(2000)):
  return _schedule(
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
@settings(max_examples=40)
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


def test_an_index_thirty_times_as_stale():
  # Checkpoints are 10 steps apart, and one generation in 30 is used.
  watcher = ShelfWatcher(range(0, 2000, 300))
  config = RefreshConfig(wait=True, lag_steps=10, every_steps=300)
  schedule = _schedule(watcher, config, save_every_steps=10)
  used = [schedule.start(0, None).step]
  used += [schedule.at(step).step for step in range(1, 700)]
  assert used == [0] * 310 + [300] * 300 + [600] * 90
  # Without waiting, what the sidecar builds in between is not used, either.
  watcher = ShelfWatcher([0])
  config = RefreshConfig(every_steps=300)
  schedule = _schedule(watcher, config, save_every_steps=10)
  schedule.start(0, None)
  watcher.steps.add(290)
  assert schedule.at(295).step == 0
  watcher.steps.add(300)
  assert schedule.at(305).step == 300


def test_the_generation_of_a_checkpoint_saved_at_preemption_is_used():
  watcher = ShelfWatcher([0])
  schedule = _schedule(watcher, RefreshConfig(), save_every_steps=10)
  schedule.start(0, None)
  watcher.steps.add(17)
  assert schedule.at(18).step == 17


def test_a_resumed_run_begins_with_the_recorded_generation():
  watcher = ShelfWatcher([0, 10, 20])
  schedule = _schedule(watcher, RefreshConfig(), save_every_steps=10)
  assert schedule.start(25, 10).step == 10
  # And without waiting goes on with the newest at the next step.
  assert schedule.at(26).step == 20
  assert watcher.used == [10, 20]


def test_the_newest_is_used_as_it_comes_and_never_an_older_one():
  watcher = ShelfWatcher([0])
  schedule = _schedule(watcher, RefreshConfig(), save_every_steps=10)
  assert schedule.start(0, None).step == 0
  assert schedule.at(1).step == 0
  watcher.steps.add(20)
  assert schedule.at(2).step == 20
  watcher.steps = {10}
  assert schedule.at(3).step == 20
  assert schedule.swaps == 1


def test_without_refresh_the_first_stays():
  watcher = ShelfWatcher([0, 10])
  schedule = _schedule(
    watcher,
    RefreshConfig(refresh=False, max_staleness_steps=5, on_stale="fail"),
    save_every_steps=10,
  )
  schedule.start(0, None)
  assert {schedule.at(step).step for step in range(1, 100)} == {0}


def test_a_stale_index_fails_the_run_when_told_to():
  schedule = _schedule(
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
  schedule = _schedule(
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
  schedule = _schedule(
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


@pytest.mark.parametrize(
  ("limit", "warned"),
  [
    # Ten times the distance of checkpoints.
    (None, "generation 0 is 101 steps old at step 101, above MAX_STALENESS_"),
    (0, ""),
  ],
)
def test_a_run_warns_of_a_stale_index_by_default(caplog, limit, warned):
  schedule = _schedule(
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


def test_a_generation_that_never_comes_is_given_up():
  schedule = _schedule(
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


def test_a_run_waits_for_what_is_damaged_to_be_made_again():
  schedule = _schedule(
    _DamagedWatcher(),
    RefreshConfig(wait=True, lag_steps=5),
    save_every_steps=10,
  )
  schedule.start(0, None)
  assert schedule.at(15).step == 10


def test_a_run_does_not_begin_with_what_is_damaged():
  schedule = _schedule(_DamagedWatcher(), RefreshConfig(), save_every_steps=10)
  with pytest.raises(DamagedGenerationError, match="10 is damaged"):
    schedule.start(15, 10)


def test_a_run_whose_generation_is_gone_goes_on_with_a_later_one(caplog):
  schedule = _schedule(
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
  schedule = _schedule(_LaterWatcher(), RefreshConfig(), save_every_steps=10)
  with caplog.at_level(logging.WARNING, logger="absl"):
    assert schedule.start(25, 20).step == 40
  assert (
    "generation 20 is damaged: continuing with generation 40" in caplog.text
  )


@pytest.mark.parametrize("change", [{"wait": True}, {"refresh": False}])
def test_a_run_that_wants_its_own_does_not_begin_with_what_is_damaged(change):
  schedule = _schedule(
    _LaterWatcher(), RefreshConfig(**change), save_every_steps=10
  )
  with pytest.raises(DamagedGenerationError, match="20 is damaged"):
    schedule.start(25, 20)


@pytest.mark.parametrize("refresh", [True, False])
def test_only_a_run_that_follows_waits_for_a_fresher_generation(
  refresh, caplog
):
  config = RefreshConfig(
    refresh=refresh, max_staleness_steps=5, on_stale="fail"
  )
  schedule = _schedule(ShelfWatcher([0]), config, save_every_steps=10)
  with caplog.at_level(logging.INFO, logger="absl"):
    schedule.start(100, 0)
  waits = [r for r in caplog.records if "waiting up to" in r.getMessage()]
  assert len(waits) == refresh


@pytest.mark.parametrize("change", [{"wait": True}, {"refresh": False}])
def test_a_run_that_wants_its_own_generation_waits_for_it(change):
  config = RefreshConfig(timeout_seconds=0.0, **change)
  schedule = _schedule(ShelfWatcher([0, 40]), config, save_every_steps=10)
  with pytest.raises(TimeoutError, match="generation 20"):
    schedule.start(25, 20)


@pytest.mark.parametrize(
  ("given", "message"),
  [
    ({"lag_steps": 0}, "lag_steps=0.*1 or more"),
    ({"on_stale": "ignore"}, "on_stale='ignore'.*'warn', 'fail'"),
  ],
)
def test_impossible_settings_are_refused(given, message):
  with pytest.raises(ValueError, match=message):
    RefreshConfig(**given)


def test_a_crashed_generation_is_not_taken_again():
  watcher = ShelfWatcher({0, 5})
  schedule = _schedule(watcher, RefreshConfig(), save_every_steps=5)
  schedule.start(0, None)
  assert schedule.at(6).step == 5
  assert schedule.after_crash(IndexCrashedError("gone")).step == 4
  assert watcher.used[-1] == 4
  assert schedule.at(7).step == 4
  watcher.steps.add(10)
  assert schedule.at(11).step == 10


def test_an_unknown_answer_to_crashes_is_refused():
  with pytest.raises(
    ValueError, match=r"on_crash='never'; want one of .*exact"
  ):
    RefreshConfig(on_crash="never")


def test_a_preempted_run_does_not_wait_for_a_generation():
  preempted = threading.Event()
  preempted.set()
  schedule = _schedule(
    ShelfWatcher(), RefreshConfig(), preempted=preempted, save_every_steps=5
  )
  with pytest.raises(WaitPreemptedError):
    schedule.start(0, None)
