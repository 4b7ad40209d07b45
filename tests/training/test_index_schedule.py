"""Which snapshot each step searches, how old it may be, and waits for it."""

import collections
import logging
import threading
import types

import pytest

from realm_jax.indexes.protocol import RetrievalUnavailableError
from realm_jax.snapshots.loading import Snapshot
from realm_jax.snapshots.manifest import (
  DamagedSnapshotError,
  SnapshotError,
)
from realm_jax.snapshots.watcher import SnapshotWatcher
from realm_jax.training import index_schedule
from realm_jax.training.config import RefreshConfig
from realm_jax.training.decisions import (
  Decisions,
  StepDecision,
  _decide_step,
)
from realm_jax.training.index_schedule import IndexSchedule


@pytest.fixture(autouse=True, scope="module")
def _short_waits():
  """Waits for snapshots end at once."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(index_schedule, "_POLL_SECONDS", 0.0)
    yield


class Loaded(Snapshot):
  """A snapshot of which only the steps matter here."""

  num_blocks = 9
  corpus = types.SimpleNamespace(version=2)
  oldest_step = 0

  def __init__(self, step, *, oldest=None):
    oldest = step if oldest is None else oldest
    vars(self).update(step=step, oldest_step=oldest)


class ShelfWatcher(SnapshotWatcher):
  """A watcher over a set of steps, of which some may be damaged.

  The newest is loaded at the look of that number.
  """

  def __init__(self, steps=(), *, damaged=(), loaded_at=1):
    self.steps, self.damaged = set(steps), list(damaged)
    self.used, self.looks, self.loaded_at = [], 0, loaded_at

  def newest(self):
    self.looks += 1
    is_loaded = self.steps and self.looks >= self.loaded_at
    return Loaded(max(self.steps)) if is_loaded else None

  def wait_for(self, step, *, timeout):
    del timeout
    if step in self.damaged:
      self.damaged.remove(step)
      raise DamagedSnapshotError(f"snapshot {step} is damaged")
    if step not in self.steps:
      raise TimeoutError(step)
    return self.load(step)

  def was_searched(self, step):
    pass

  def in_use(self, step):
    self.used.append(step)

  def poll(self, *, now=False):
    pass


def _schedule(watcher, *, load=Loaded, every=10, num_searched=9, **config):
  """Returns the schedule of a run whose checkpoints are so many steps apart."""

  def watch(directory, load, **settings):
    del directory, settings
    watcher.load = load
    return watcher

  config = RefreshConfig(**config)
  return IndexSchedule(
    load,
    config,
    model_dir="run",
    num_searched=num_searched,
    every_steps=config.refresh_every_steps or every,
    decisions=Decisions(
      threading.Event(), num_steps=2000, save_every_steps=every
    ),
    watch=watch,
  )


def _used(schedule, steps, recorded=None):
  first, *others = steps
  used = [schedule.at(first, recorded=recorded).step]
  return used + [_next(schedule, step) for step in others]


def _next(schedule, step):
  """The snapshot of a step of a run of one process."""
  return schedule.at(step, agreed=schedule.offer()[0]).step


@pytest.mark.parametrize(("every", "lag"), [(10, 4), (4, 10)])
def test_waiting_uses_checkpoint_c_from_exactly_c_plus_lag(every, lag):
  expected = [max(0, step - lag) // every * every for step in range(60)]
  # A run that is resumed anywhere uses what an unbroken run used.
  for start in (0, 13, 14, 40):
    schedule = _schedule(
      ShelfWatcher(range(60)),
      every=every,
      wait_for_snapshots=True,
      lag_steps=lag,
    )
    used = _used(schedule, range(start, 60), expected[start])
    assert used == expected[start:]


def test_the_newest_is_used_as_it_comes_and_never_an_older_one():
  watcher = ShelfWatcher([0, 10, 20])
  # A resumed run begins with the recorded one.
  schedule = _schedule(watcher)
  assert _used(schedule, (25, 26), 10) == watcher.used == [10, 20]
  # As a run saves it that is preempted.
  watcher.steps.add(27)
  assert _next(schedule, 28) == 27
  watcher.steps = {10}
  assert _next(schedule, 29) == 27


def test_a_snapshot_that_cannot_be_used_ends_the_wait():
  never = _schedule(ShelfWatcher(), timeout_seconds=0.01)
  with pytest.raises(
    RetrievalUnavailableError, match=r"snapshot 0.*build_index"
  ):
    never.at(0)
  with pytest.raises(SnapshotError, match="has 9 blocks since version 2"):
    _schedule(ShelfWatcher([0]), num_searched=10).at(0)
  # Nothing replaces the only snapshot of a run.
  only = _schedule(ShelfWatcher(damaged=[10]), swap_snapshots=False)
  with pytest.raises(DamagedSnapshotError, match="10 is damaged"):
    only.at(15, recorded=10)


def test_a_run_waits_for_what_is_damaged_to_be_made_again():
  schedule = _schedule(ShelfWatcher([10], damaged=[10, 10]))
  assert schedule.at(15, recorded=10).step == 10
  schedule = _schedule(
    ShelfWatcher([0, 10], damaged=[10, 10]),
    wait_for_snapshots=True,
    lag_steps=5,
  )
  assert _used(schedule, (0, 15)) == [0, 10]


_GONE = {"steps": [0, 40]}
_DAMAGED = {"steps": [20, 40], "damaged": [20] * 99_999, "loaded_at": 3}


@pytest.mark.parametrize("found", [_GONE, _DAMAGED])
def test_a_run_whose_snapshot_is_gone_or_damaged_goes_on_with_a_later_one(
  found, caplog
):
  with caplog.at_level(logging.WARNING, logger="absl"):
    assert _schedule(ShelfWatcher(**found)).at(25, recorded=20).step == 40
  assert "20 is gone or damaged: continuing with snapshot 40" in caplog.text
  # One that wants its own takes no other.
  for change in ({"wait_for_snapshots": True}, {"swap_snapshots": False}):
    schedule = _schedule(ShelfWatcher(**found), timeout_seconds=0.01, **change)
    with pytest.raises(
      (RetrievalUnavailableError, SnapshotError), match="snapshot 20"
    ):
      schedule.at(25, recorded=20)


def test_a_run_that_swaps_fails_once_its_oldest_vector_is_too_old():
  watcher = ShelfWatcher([0])
  schedule = _schedule(watcher, max_staleness_steps=30, on_stale="fail")
  schedule.at(0)
  watcher.newest = lambda: Loaded(40, oldest=15)
  assert _next(schedule, 45) == 40
  with pytest.raises(RetrievalUnavailableError, match=r"40 is 31 steps old"):
    _next(schedule, 46)


def test_a_run_warns_of_a_stale_index_by_default(caplog):
  schedule = _schedule(ShelfWatcher([0]))
  with caplog.at_level(logging.WARNING, logger="absl"):
    # Ten times the distance of checkpoints.
    _used(schedule, (0, 1, 100))
    assert not caplog.records
    _next(schedule, 101)
  assert "MAX_STALENESS_STEPS" in caplog.text


def _on_each(schedules, step):
  """The snapshots of a step, once the processes have agreed on the last."""
  offered, facts = [], []
  for schedule in schedules:
    snapshot, refused = schedule.offer()
    offered.append(snapshot)
    loaded = None if snapshot is None else snapshot.step
    known = {"snapshot": loaded, "refused": refused, "metrics": {}}
    facts.append(known | {"preempted": False, "abandoned": False})
  decided = StepDecision(**_decide_step(facts))
  used = []
  for schedule, snapshot in zip(schedules, offered, strict=True):
    schedule._decisions.last = decided
    agreed = None if decided.snapshot is None else snapshot
    used.append(schedule.at(step, agreed=agreed).step)
  return used


class Host(ShelfWatcher):
  """The watcher of a process that begins to load what is asked for."""

  def __init__(self, *, ready_after=0, cannot=()):
    super().__init__([0])
    self.ready_after, self.cannot = ready_after, cannot
    self.asked, self.rejected = collections.Counter(), []

  def newest(self):
    usable = self.steps - {*self.rejected}
    return Loaded(max(usable))

  def request(self, step):
    self.asked[step] += 1
    is_loaded = step not in self.cannot and self.asked[step] > self.ready_after
    return Loaded(step) if is_loaded else None

  def cannot_use(self, step):
    return step in self.cannot

  def reject(self, step, error):
    self.rejected.append(step)


def _two_processes(follower):
  """Returns schedules of a leader and of another process, already started."""
  schedules = []
  for index, watcher in enumerate([Host(), follower]):
    schedule = _schedule(watcher)
    schedule.at(0)
    schedule._loop = types.SimpleNamespace(count=2, is_leader=index == 0)
    schedules.append(schedule)
  return schedules


def test_a_host_that_is_slow_to_load_is_not_overtaken_for_ever():
  # It needs 30 steps for what is published every 10.
  follower = Host(ready_after=30)
  schedules = _two_processes(follower)
  used = []
  for step in range(1, 120):
    schedules[0]._watcher.steps.add(step // 10 * 10)
    both = _on_each(schedules, step)
    assert both[0] == both[1]
    used.append(both[0])
  # The first is swapped in, and then the newest of that time.
  assert sorted({*used}) == [0, 10, 40, 70]


def test_what_a_host_cannot_use_makes_room_for_the_next():
  schedules = _two_processes(Host(cannot={10}))
  leader = schedules[0]._watcher
  leader.steps.add(10)
  for step in range(1, 4):
    assert _on_each(schedules, step) == [0, 0]
  assert leader.rejected == [10]
  leader.steps.add(20)
  for step in range(4, 7):
    used = _on_each(schedules, step)
  assert used == [20, 20]
