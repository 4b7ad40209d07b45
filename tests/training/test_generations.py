"""Which generation each step searches, how old it may be, and waits for it."""

import logging
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realm_jax.generations.loading import Generation
from realm_jax.generations.manifest import DamagedGenerationError
from realm_jax.generations.store import FOLDER, MANIFEST, GenerationStore
from realm_jax.generations.watcher import GenerationWatcher
from realm_jax.indexes.protocol import (
  IndexCrashedError,
  RetrievalUnavailableError,
)
from realm_jax.training import generations
from realm_jax.training.config import RefreshConfig
from realm_jax.training.decisions import Decisions
from realm_jax.training.generations import (
  GenerationSchedule,
)
from realm_jax.training.goodput import Goodput


@pytest.fixture(autouse=True, scope="module")
def _short_waits():
  """Waits for generations end at once."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(generations, "_POLL_SECONDS", 0.0)
    patch.setattr(generations, "_FRESHER_SECONDS", 0.1)
    yield


class Loaded(Generation):
  """A generation of which only the steps matter here."""

  num_blocks = 9

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

  def poll(self, *, now=False):
    pass


def _schedule(watcher, *, every=10, preempted=None, model_dir="run", **config):
  """Returns the schedule of a run whose checkpoints are so many steps apart."""
  config = RefreshConfig(**config)
  decisions = Decisions(
    preempted or threading.Event(), num_steps=2000, save_every_steps=every
  )
  return GenerationSchedule(
    Loaded,
    config,
    model_dir=model_dir,
    num_searched=9,
    every_steps=config.refresh_every_steps or every,
    decisions=decisions,
    goodput=Goodput(),
    watch=lambda *_, **__: watcher,
  )


def _waiting(lag, every):
  return _schedule(
    ShelfWatcher(range(2000)),
    every=every,
    wait_for_generations=True,
    lag_steps=lag,
  )


def _used(schedule, steps, recorded=None):
  first, *others = steps
  used = [schedule.start(first, recorded).step]
  return used + [schedule.at(step).step for step in others]


@given(
  lag=st.integers(1, 40), every=st.integers(1, 25), start=st.integers(0, 120)
)
@settings(max_examples=40)
def test_waiting_uses_checkpoint_c_from_exactly_c_plus_lag(lag, every, start):
  # A run that is resumed anywhere uses what an unbroken run used.
  used = _used(_waiting(lag, every), range(150))
  again = _used(_waiting(lag, every), range(start, 150), used[start])
  assert again == used[start:]
  for step, generation in enumerate(used):
    assert generation % every == 0
    assert generation == 0 or generation + lag <= step
    assert generation + every + lag > step


def test_an_index_thirty_times_as_stale():
  # Checkpoints are 10 steps apart, and one generation in 30 is used.
  schedule = _schedule(
    ShelfWatcher(range(0, 2000, 300)),
    wait_for_generations=True,
    lag_steps=10,
    refresh_every_steps=300,
  )
  assert _used(schedule, range(700)) == [0] * 310 + [300] * 300 + [600] * 90
  # Without waiting, what the sidecar builds in between is not used, either.
  watcher = ShelfWatcher([0])
  schedule = _schedule(watcher, refresh_every_steps=300)
  schedule.start(0, None)
  watcher.steps.add(290)
  assert schedule.at(295).step == 0
  watcher.steps.add(300)
  assert schedule.at(305).step == 300


def test_a_resumed_run_begins_with_the_recorded_generation():
  watcher = ShelfWatcher([0, 10, 20])
  # And without waiting goes on with the newest at the next step.
  assert _used(_schedule(watcher), (25, 26), 10) == [10, 20]
  assert watcher.used == [10, 20]


def test_the_newest_is_used_as_it_comes_and_never_an_older_one():
  watcher = ShelfWatcher([0])
  schedule = _schedule(watcher)
  assert _used(schedule, (0, 1)) == [0, 0]
  # As a run saves it that is preempted.
  watcher.steps.add(17)
  assert schedule.at(18).step == 17
  watcher.steps = {10}
  assert schedule.at(19).step == 17


def test_a_crashed_generation_is_not_taken_again(tmp_path):
  for step in (0, 5):
    folder = GenerationStore(tmp_path / FOLDER).path(step)
    folder.mkdir(parents=True)
    (folder / MANIFEST).touch()
  watcher = ShelfWatcher({0, 5})
  schedule = _schedule(watcher, every=5, model_dir=tmp_path, on_crash="last")
  assert _used(schedule, (0, 6)) == [0, 5]
  assert schedule.after_crash(IndexCrashedError("gone")).step == 0
  assert watcher.used[-1] == 0
  assert schedule.at(7).step == 0
  watcher.steps.add(10)
  assert schedule.at(11).step == 10


def test_a_generation_that_never_comes_is_given_up():
  schedule = _schedule(ShelfWatcher(), timeout_seconds=0.01)
  with pytest.raises(
    RetrievalUnavailableError, match=r"generation 0.*build_index"
  ):
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
    _DamagedWatcher(), wait_for_generations=True, lag_steps=5
  )
  assert _used(schedule, (0, 15)) == [0, 10]


def test_a_run_does_not_begin_with_what_is_damaged():
  with pytest.raises(DamagedGenerationError, match="10 is damaged"):
    _schedule(_DamagedWatcher()).start(15, 10)


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


@pytest.mark.parametrize("watcher", [ShelfWatcher([0, 40]), _LaterWatcher()])
def test_a_run_whose_generation_is_gone_or_damaged_goes_on_with_a_later_one(
  watcher, caplog
):
  with caplog.at_level(logging.WARNING, logger="absl"):
    assert _schedule(watcher).start(25, 20).step == 40
  assert "20 is gone or damaged: continuing with generation 40" in caplog.text


@pytest.mark.parametrize(
  "change", [{"wait_for_generations": True}, {"swap_generations": False}]
)
def test_a_run_that_wants_its_own_generation_takes_no_other(change):
  with pytest.raises(DamagedGenerationError, match="20 is damaged"):
    _schedule(_LaterWatcher(), **change).start(25, 20)
  schedule = _schedule(ShelfWatcher([0, 40]), timeout_seconds=0.01, **change)
  with pytest.raises(RetrievalUnavailableError, match="generation 20"):
    schedule.start(25, 20)


def test_without_refresh_the_first_stays():
  schedule = _schedule(
    ShelfWatcher([0, 10]),
    swap_generations=False,
    max_staleness_steps=5,
    on_stale="fail",
  )
  assert _used(schedule, range(100)) == [0] * 100


def test_staleness_counts_from_the_oldest_vector():
  watcher = ShelfWatcher([0])
  schedule = _schedule(watcher, max_staleness_steps=30, on_stale="fail")
  schedule.start(0, None)
  watcher.newest = lambda: Loaded(40, oldest=15)
  assert schedule.at(45).step == 40
  with pytest.raises(RetrievalUnavailableError, match=r"40 is 31 steps old"):
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
  schedule = _schedule(ShelfWatcher([0]), max_staleness_steps=limit)
  with caplog.at_level(logging.WARNING, logger="absl"):
    _used(schedule, (0, 1, 100))
    assert not caplog.records
    schedule.at(101)
  assert warned in caplog.text
  assert len(caplog.records) == bool(warned)


@pytest.mark.parametrize("swaps", [True, False])
def test_only_a_run_that_swaps_waits_for_a_fresher_generation(swaps, caplog):
  class Late(ShelfWatcher):
    """Publishes generation 100 once somebody looks for it."""

    def newest(self):
      self.steps.add(100)
      return super().newest() if len(self.used) > 0 else None

  schedule = _schedule(
    Late([0]),
    swap_generations=swaps,
    max_staleness_steps=5,
    on_stale="fail",
  )
  assert schedule.start(100, 0).step == (100 if swaps else 0)
