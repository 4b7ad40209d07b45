"""Training: one loop for all stages.

For each step s, counted from 0:

1. Take the batch of step s, whose candidates were retrieved during step s − 1.
2. Read the examples of step s + 1, embed their queries, and search the snapshot
   of step s + 1.
3. Dispatch the compiled step s. Its metrics are read two steps later, so that
   the host does not wait for the devices.
4. If one is due, save a checkpoint: parameters and optimizer after s + 1 steps,
   the position in the data, the snapshot, and the blocks retrieved for step
   s + 1. A killed run continues from it as if it had not been interrupted.

A run ends after its last step. When it is preempted (SIGTERM, Ctrl-C), it saves
a checkpoint and ends.
"""

import dataclasses
from collections.abc import Callable, Iterator

from absl import logging

from realm_jax.indexes.protocol import (
  RetrievalUnavailableError,
  WaitPreemptedError,
)
from realm_jax.training.batch_pipeline import BatchPipeline
from realm_jax.training.checkpointing import Checkpointer
from realm_jax.training.decisions import Decisions
from realm_jax.training.goodput import lost_to
from realm_jax.training.metrics import MetricsLog, NonFiniteLossError
from realm_jax.training.rolling_index import RollingIndex
from realm_jax.training.state import Metrics, TrainState


@dataclasses.dataclass(frozen=True)
class TrainResult:
  """The step that a run reached, and whether it was preempted there."""

  step: int
  preempted: bool


@dataclasses.dataclass(frozen=True)
class OpenRun:
  """The opened parts of a run."""

  step_function: Callable[..., tuple[TrainState, Metrics]]
  batches: BatchPipeline
  checkpoints: Checkpointer
  decisions: Decisions
  metrics: MetricsLog
  # Checks, on process 0, that this trainer still owns MODEL_DIR.
  check_role: Callable[[], None] = lambda: None
  rolling_index: RollingIndex | None = None


def run_steps(
  state: TrainState, run: OpenRun, *, num_steps: int
) -> TrainResult:
  """Runs the steps up to `num_steps`; donates the buffers of `state`."""
  step = int(state.step)
  for _ in iterate(state, run, num_steps=num_steps):
    step += 1
  if step < num_steps:
    logging.info("Preempted: checkpoint saved at step %d, exiting.", step)
  return TrainResult(step=step, preempted=step < num_steps)


def iterate(
  state: TrainState, run: OpenRun, *, num_steps: int
) -> Iterator[tuple[TrainState, Metrics]]:
  """Yields the state after each step, with the metrics, still on the devices.

  The next step gets the buffers of a state, so use a state before asking for
  the next one. The last state, earlier than `num_steps` if the run was
  preempted, is yielded once its checkpoint is written.
  """
  batches, metrics = run.batches, run.metrics
  step = saved = int(state.step)

  def save() -> None:
    metrics.flush()
    with lost_to("save"):
      run.checkpoints.save(state, batches.state(step))

  try:
    if run.rolling_index is not None:
      state = run.rolling_index.open(state)
    while step < num_steps:
      prepared = batches.take(step, state.params)
      state, on_devices = run.step_function(
        state, prepared.batch, prepared.searched, step
      )
      step += 1
      metrics.push(step, on_devices, prepared.metrics)
      is_due, is_last = run.decisions.after_step(step)
      run.check_role()
      if run.checkpoints.must_save_again() or is_due:
        save()
        saved = step
      if is_last or step == num_steps:
        with lost_to("save"):
          run.checkpoints.wait()
      yield state, on_devices
      if is_last:
        return
  except NonFiniteLossError as error:
    raise run.checkpoints.with_last_good(error) from None
  except RetrievalUnavailableError as reason:
    if step > saved:
      run.check_role()
      try:
        save()
      except NonFiniteLossError as error:
        raise run.checkpoints.with_last_good(error) from None
    if not isinstance(reason, WaitPreemptedError):
      raise
    run.checkpoints.wait()
