"""The loop over fakes: what it asks of each part, and in which order."""

import threading

import jax.numpy as jnp
import numpy as np
import pytest

from realm_jax.indexes.protocol import (
  IndexCrashedError,
  RetrievalUnavailableError,
)
from realm_jax.storage.sole_process import SoleProcessError
from realm_jax.training.batch_pipeline import Prepared
from realm_jax.training.checkpointing import Checkpointer, LoopState
from realm_jax.training.decisions import Decisions
from realm_jax.training.index_schedule import WaitPreemptedError
from realm_jax.training.loop import OpenRun, run_steps
from realm_jax.training.metrics import MetricsLog, NonFiniteLossError
from realm_jax.training.state import TrainState


class Batches:
  """A stream that has a batch for each step, and may run out of them."""

  def __init__(self, events, unavailable):
    self.events, self.unavailable = events, unavailable

  def take(self, step, params):
    # Taking a step begins the next one.
    for begun in (step, step + 1):
      if begun in self.unavailable:
        raise self.unavailable[begun]
    self.events.append(("take", step, int(params["reader"])))
    return Prepared({"query": np.full(1, step)}, {"of_step": step})

  def state(self, step):
    return LoopState(positions=np.array([10 * step]))


class Checkpoints(Checkpointer):
  def __init__(self, events, failures):
    self.events, self.failures = events, failures
    self.wait = lambda: events.append(("wait",))

  def must_save_again(self):
    return bool(self.failures) and self.events[-1] == self.failures.pop(0)

  def save(self, state, loop_state):
    self.events.append(("save", int(state.step), *loop_state.positions))

  def with_last_good(self, error):
    return NonFiniteLossError(f"{error}, but a checkpoint is good")


class Metrics(MetricsLog):
  """Expects metrics of each step; the loss of one may be bad.

  A bad loss is noticed when the next step's metrics come, or by a flush.
  """

  def __init__(self, events, bad_step):
    self.events, self.bad_step, self.step = events, bad_step, 0

  def push(self, step, on_devices, on_host):
    assert on_host["of_step"] == step - 1
    self._look()
    self.step = step

  def flush(self):
    self.events.append(("flush",))
    self._look()

  def _look(self):
    if self.step == self.bad_step:
      raise NonFiniteLossError("loss is nan")


def _run(
  *,
  num_steps=9,
  every=2,
  unavailable=(),
  preempted_at=None,
  bad_step=None,
  taken_at=None,
  failed_after=(),
):
  """What the parts were asked for, in order, and the result or the error."""
  events, preempted = [], threading.Event()

  def state_after(step):
    return TrainState(jnp.int32(step), {"reader": jnp.float32(step)}, ())

  def step_function(state, batch, searched, step):
    assert int(batch["query"][0]) == step == int(state.step)
    assert searched is None
    events.append(("step", step))
    if step == preempted_at:
      preempted.set()
    return state_after(step + 1), {"loss": jnp.float32(step)}

  def check_role():
    if ("step", taken_at) in events:
      raise SoleProcessError("another trainer")

  run = OpenRun(
    step_function=step_function,
    batches=Batches(events, unavailable),
    checkpoints=Checkpoints(events, list(failed_after)),
    decisions=Decisions(preempted, num_steps=num_steps, save_every_steps=every),
    metrics=Metrics(events, bad_step),
    check_role=check_role,
  )
  try:
    return events, run_steps(state_after(0), run, num_steps=num_steps)
  except Exception as error:
    return events, error


def _saved(events):
  return [event[1:] for event in events if event[0] == "save"]


def test_each_batch_is_taken_with_the_parameters_before_its_step():
  events, result = _run(num_steps=3, every=10)
  assert events == [
    ("take", 0, 0),
    ("step", 0),
    ("take", 1, 1),
    ("step", 1),
    ("take", 2, 2),
    ("step", 2),
    # The steps before a checkpoint are known to be finite.
    ("flush",),
    ("save", 3, 30),
    ("wait",),
  ]
  assert (result.step, result.preempted) == (3, False)


def test_a_preempted_run_saves_after_its_step_and_ends():
  events, result = _run(every=100, preempted_at=2)
  assert _saved(events) == [(3, 30)]
  assert (result.step, result.preempted) == (3, True)


def test_a_save_that_failed_is_taken_again_from_the_next_step():
  events, _ = _run(num_steps=6, every=5, failed_after=[("step", 0)])
  assert _saved(events) == [(1, 10), (5, 50), (6, 60)]


@pytest.mark.parametrize(("waits_at", "saved"), [(3, [(2, 20)]), (0, [])])
def test_a_run_that_is_preempted_while_it_waits_ends_in_peace(waits_at, saved):
  unavailable = {waits_at: WaitPreemptedError()}
  events, result = _run(every=100, unavailable=unavailable)
  assert _saved(events) == saved
  assert (result.step, result.preempted) == (max(0, waits_at - 1), True)


@pytest.mark.parametrize(
  ("fault", "raised", "saved"),
  [
    # With nothing to search; step 3 was prepared and not run.
    (
      {"unavailable": {4: RetrievalUnavailableError()}},
      RetrievalUnavailableError,
      [(2, 20), (3, 30)],
    ),
    # The process of an index has died: the run is resumed where it was saved.
    ({"unavailable": {4: IndexCrashedError()}}, IndexCrashedError, [(2, 20)]),
    ({"bad_step": 3}, NonFiniteLossError, [(2, 20)]),
    # A loss that is found to be bad when nothing is left to search.
    (
      {"bad_step": 3, "unavailable": {4: WaitPreemptedError()}},
      NonFiniteLossError,
      [(2, 20)],
    ),
    # Another trainer has taken its place.
    ({"taken_at": 3}, SoleProcessError, [(2, 20)]),
  ],
)
def test_a_run_that_fails_saves_what_is_good(fault, raised, saved):
  events, error = _run(**fault)
  assert isinstance(error, raised)
  assert ("a checkpoint is good" in str(error)) == (
    raised is NonFiniteLossError
  )
  assert _saved(events) == saved
  assert ("step", 4) not in events
