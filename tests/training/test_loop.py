"""The loop over fakes: what it asks of each part, and in which order."""

import threading

import jax.numpy as jnp
import numpy as np
import pytest

from realm_jax.indexes.protocol import (
  IndexCrashedError,
  RetrievalUnavailableError,
)
from realm_jax.storage.sole_process import SoleProcess, SoleProcessError
from realm_jax.training.candidates import Prepared
from realm_jax.training.checkpointing import Checkpointer, LoopState
from realm_jax.training.decisions import Decisions
from realm_jax.training.generations import WaitPreemptedError
from realm_jax.training.loop import Run, run_steps
from realm_jax.training.metrics import (
  MetricsLog,
  NonFiniteLossError,
)
from realm_jax.training.step import TrainState


class Candidates:
  """A stream that has a batch for each step, and may run out of them."""

  def __init__(self, events, unavailable=None):
    self.events = events
    self.unavailable = unavailable or {}
    self.received = []

  def open(self, state):
    return state

  def prefetch(self, step, params):
    if step in self.unavailable:
      raise self.unavailable[step]
    self.events.append(("prefetch", step))
    self.received.append(int(params["reader"]))

  def take(self, step):
    self.events.append(("take", step))
    batch = {"query": np.full(1, step)}
    return Prepared(batch, {"of_step": step})

  def state(self, step):
    return LoopState(positions=np.array([10 * step]))


class Checkpoints(Checkpointer):
  def __init__(self, events):
    self.events = events

  def save(self, state, loop_state):
    self.events.append(("save", int(state.step), *loop_state.positions))

  def check(self):
    pass

  def hurry(self):
    self.events.append(("hurry",))

  def wait(self):
    self.events.append(("wait",))

  def with_last_good(self, error):
    return error


class Metrics(MetricsLog):
  """Keeps what is pushed; the loss of one step may be bad."""

  def __init__(self, events, bad_step=None):
    self.events = events
    self.bad_step = bad_step

  def push(self, step, on_devices, on_host):
    assert on_host["of_step"] == step - 1
    if step == self.bad_step:
      raise NonFiniteLossError("loss is nan")

  def flush(self):
    self.events.append(("flush",))


class Sole(SoleProcess):
  """The right to write, which another process has taken during a step."""

  def __init__(self, events, taken_at):
    self.events = events
    self.taken_at = taken_at

  def check(self):
    if ("step", self.taken_at) in self.events:
      raise SoleProcessError("another trainer")


def _state(step=0):
  return TrainState(jnp.int32(step), {"reader": jnp.float32(step)}, ())


def _run(
  *,
  start=0,
  num_steps=4,
  every=2,
  unavailable=None,
  preempted_at=None,
  bad_step=None,
  taken_at=None,
):
  events = []  # What the parts were asked for, in order.
  preempted = threading.Event()
  candidates = Candidates(events, unavailable)

  def step_function(state, batch, searched, step):
    assert int(batch["query"][0]) == step == int(state.step)
    assert searched is None
    events.append(("step", step))
    if step == preempted_at:
      preempted.set()
    return _state(step + 1), {"loss": jnp.float32(step)}

  result, error = None, None
  try:
    run = Run(
      step_function=step_function,
      candidates=candidates,
      checkpoints=Checkpoints(events),
      decisions=Decisions(
        preempted, num_steps=num_steps, save_every_steps=every
      ),
      metrics=Metrics(events, bad_step),
      sole=Sole(events, taken_at),
    )
    result = run_steps(_state(start), run, num_steps=num_steps)
  except Exception as raised:
    error = raised
  return events, candidates, result, error


def _saved(events):
  return [event for event in events if event[0] == "save"]


def test_the_next_batch_is_prefetched_before_a_step_is_dispatched():
  events, candidates, result, _ = _run(num_steps=3, every=10)
  assert events == [
    ("prefetch", 0),
    ("take", 0),
    ("prefetch", 1),
    ("step", 0),
    ("take", 1),
    ("prefetch", 2),
    ("step", 1),
    ("take", 2),
    ("step", 2),
    ("flush",),
    ("save", 3, 30),
    ("wait",),
  ]
  # The parameters before the step that is dispatched next.
  assert candidates.received == [0, 0, 1]
  assert (result.step, result.preempted) == (3, False)


def test_checkpoints_are_saved_when_due_and_at_the_end():
  events, *_ = _run(num_steps=5, every=2)
  assert _saved(events) == [("save", 2, 20), ("save", 4, 40), ("save", 5, 50)]
  for place, event in enumerate(events):
    if event[0] == "save":
      # The steps before it are known to be finite.
      assert events[place - 1] == ("flush",)


def test_a_preempted_run_saves_after_its_step_and_ends():
  events, _, result, _ = _run(num_steps=9, every=100, preempted_at=2)
  assert _saved(events) == [("save", 3, 30)]
  # A disk that is full must not keep it alive.
  assert events.index(("hurry",)) < events.index(("save", 3, 30))
  assert (result.step, result.preempted) == (3, True)


@pytest.mark.parametrize(
  "reason",
  [RetrievalUnavailableError("too old"), IndexCrashedError("gone")],
)
def test_a_run_with_nothing_to_search_saves_and_fails(reason):
  events, _, _, error = _run(num_steps=9, every=2, unavailable={4: reason})
  assert error is reason
  # Step 3 was prepared and not run.
  assert events[-2:] == [("flush",), ("save", 3, 30)]


def test_a_run_that_is_preempted_while_it_waits_ends_in_peace():
  events, _, result, error = _run(
    num_steps=9, every=100, unavailable={3: WaitPreemptedError()}
  )
  assert error is None
  assert _saved(events) == [("save", 2, 20)]
  assert (result.step, result.preempted) == (2, True)
  events, _, result, error = _run(unavailable={0: WaitPreemptedError()})
  assert (error, _saved(events), result.preempted) == (None, [], True)


def test_a_loss_that_is_not_finite_is_never_saved():
  events, _, _, error = _run(num_steps=9, every=2, bad_step=4)
  assert isinstance(error, NonFiniteLossError)
  assert _saved(events) == [("save", 2, 20)]


def test_a_trainer_whose_place_was_taken_saves_nothing():
  events, _, _, error = _run(num_steps=6, every=2, taken_at=3)
  assert isinstance(error, SoleProcessError)
  assert [saved[1] for saved in _saved(events)] == [2]
  assert ("step", 4) not in events
