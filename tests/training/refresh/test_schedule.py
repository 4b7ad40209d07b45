"""Which generation each step searches."""

import logging
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realm_jax.indexes.protocol import IndexCrashedError
from realm_jax.training.config import RefreshConfig
from realm_jax.training.refresh.schedule import WaitPreemptedError
from tests.training.refresh.schedules import ShelfWatcher, make_schedule

pytestmark = pytest.mark.usefixtures("short_waits")


def _waiting(lag, every, *, available=range(2000)):
  return make_schedule(
    ShelfWatcher(available),
    RefreshConfig(wait_for_generations=True, lag_steps=lag),
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


def test_an_index_thirty_times_as_stale():
  # Checkpoints are 10 steps apart, and one generation in 30 is used.
  watcher = ShelfWatcher(range(0, 2000, 300))
  config = RefreshConfig(
    wait_for_generations=True, lag_steps=10, refresh_every_steps=300
  )
  schedule = make_schedule(watcher, config, save_every_steps=10)
  used = [schedule.start(0, None).step]
  used += [schedule.at(step).step for step in range(1, 700)]
  assert used == [0] * 310 + [300] * 300 + [600] * 90
  # Without waiting, what the sidecar builds in between is not used, either.
  watcher = ShelfWatcher([0])
  config = RefreshConfig(refresh_every_steps=300)
  schedule = make_schedule(watcher, config, save_every_steps=10)
  schedule.start(0, None)
  watcher.steps.add(290)
  assert schedule.at(295).step == 0
  watcher.steps.add(300)
  assert schedule.at(305).step == 300


def test_the_generation_of_a_checkpoint_saved_at_preemption_is_used():
  watcher = ShelfWatcher([0])
  schedule = make_schedule(watcher, RefreshConfig(), save_every_steps=10)
  schedule.start(0, None)
  watcher.steps.add(17)
  assert schedule.at(18).step == 17


def test_a_resumed_run_begins_with_the_recorded_generation():
  watcher = ShelfWatcher([0, 10, 20])
  schedule = make_schedule(watcher, RefreshConfig(), save_every_steps=10)
  assert schedule.start(25, 10).step == 10
  # And without waiting goes on with the newest at the next step.
  assert schedule.at(26).step == 20
  assert watcher.used == [10, 20]


def test_the_newest_is_used_as_it_comes_and_never_an_older_one():
  watcher = ShelfWatcher([0])
  schedule = make_schedule(watcher, RefreshConfig(), save_every_steps=10)
  assert schedule.start(0, None).step == 0
  assert schedule.at(1).step == 0
  watcher.steps.add(20)
  assert schedule.at(2).step == 20
  watcher.steps = {10}
  assert schedule.at(3).step == 20
  assert schedule.swaps == 1


def test_a_crashed_generation_is_not_taken_again():
  watcher = ShelfWatcher({0, 5})
  schedule = make_schedule(watcher, RefreshConfig(), save_every_steps=5)
  schedule.start(0, None)
  assert schedule.at(6).step == 5
  assert schedule.after_crash(IndexCrashedError("gone")).step == 4
  assert watcher.used[-1] == 4
  assert schedule.at(7).step == 4
  watcher.steps.add(10)
  assert schedule.at(11).step == 10


def test_a_new_run_says_at_once_which_command_it_waits_for(caplog):
  preempted = threading.Event()

  class Empty(ShelfWatcher):
    def wait_for(self, step, *, timeout):
      preempted.set()
      raise TimeoutError(step)

  schedule = make_schedule(
    Empty(), RefreshConfig(), save_every_steps=10, preempted=preempted
  )
  with (
    caplog.at_level(logging.INFO, logger="absl"),
    pytest.raises(WaitPreemptedError),
  ):
    schedule.start(0, None)
  assert "realm_jax.build_index --model_dir=run" in caplog.text
