"""Training: one loop for all stages.

For each step s, counted from 0:

1. The batch of step s, whose candidates were retrieved while step s − 1 ran,
   is taken.
2. The examples of step s + 1 are read, and their queries are embedded and
   searched in the generation of step s + 1.
3. The compiled step s is dispatched. Its metrics are read two steps later, so
   that the host does not wait for the devices.
4. Where it is due, a checkpoint is saved: parameters and optimizer after s + 1
   steps, the position in the data, the generation in use and the blocks that
   were retrieved for step s + 1. A run that is killed continues from it as if
   it had not been interrupted.

A run ends after its last step, or when it is preempted (SIGTERM), after saving
a checkpoint.
"""

import dataclasses
from collections.abc import Mapping

from absl import logging

from realm_jax.indexes.protocol import RetrievalUnavailableError
from realm_jax.training.config import TrainConfig
from realm_jax.training.generations import WaitPreemptedError
from realm_jax.training.metrics import NonFiniteLossError
from realm_jax.training.run import Run, open_run
from realm_jax.training.state import TrainState


@dataclasses.dataclass(frozen=True)
class TrainResult:
  """The result of a run, which was preempted if it has steps left.

  `swaps` counts the generations that were swapped in, and `metrics` are those
  of the last step; empty where none was done.
  """

  step: int
  swaps: int
  metrics: dict[str, float]
  preempted: bool


def train(
  config: TrainConfig, *, configuration: Mapping[str, str] | None = None
) -> TrainResult:
  """Trains one stage, from the last checkpoint of MODEL_DIR if there is one.

  Args:
    config: Configuration of the run.
    configuration: Texts of the files in which MODEL_DIR keeps the
      configuration, if any (`realm_jax/files/kept_configuration.py`).

  Raises:
    SoleProcessError: MODEL_DIR has a trainer already, or, on an object store,
      another has taken it from this one.
    CheckpointError: A checkpoint is missing, does not fit, or could not be
      written.
    CorpusError: There is no corpus, or its blocks are longer than
      `block_length`.
    ValueError: The configuration does not fit the corpus or the devices.
    NonFiniteLossError: The loss is not finite; the last good checkpoint stays.
  """
  with open_run(config, configuration) as (state, run):
    if run is None:
      step = int(state.step)
      logging.info("%s is already trained: step %d", config.model_dir, step)
      return TrainResult(step, swaps=0, metrics={}, preempted=False)
    try:
      return run_steps(state, run, num_steps=config.num_steps)
    except NonFiniteLossError as error:
      raise run.checkpoints.with_last_good(error) from None
    finally:
      logging.info("goodput: %s", run.goodput)


def run_steps(state: TrainState, run: Run, *, num_steps: int) -> TrainResult:
  """Runs the steps from a state, whose buffers are donated, to `num_steps`."""
  candidates, metrics, goodput = run.candidates, run.metrics, run.goodput
  step = saved = int(state.step)
  try:
    state = candidates.open(state)
    candidates.prefetch(step, state.params)
    while step < num_steps:
      prepared = candidates.take(step)
      if step + 1 < num_steps:
        candidates.prefetch(step + 1, state.params)
      state, on_devices = run.step_function(
        state, prepared.batch, prepared.searched, step
      )
      step += 1
      metrics.push(step, on_devices, {**prepared.metrics, **goodput.row()})
      decision = run.decisions.after_step(step)
      run.sole.check()
      run.checkpoints.check()
      if decision.stop:
        run.checkpoints.hurry()
      if decision.save:
        metrics.flush()
        with goodput.measure("saving"):
          run.checkpoints.save(state, candidates.state(step))
        saved = step
      if decision.stop:
        break
  except RetrievalUnavailableError as reason:
    if isinstance(reason, WaitPreemptedError):
      run.checkpoints.hurry()
    if step > saved:
      run.sole.check()
      metrics.flush()
      with goodput.measure("saving"):
        run.checkpoints.save(state, candidates.state(step))
    if not isinstance(reason, WaitPreemptedError):
      raise
  with goodput.measure("saving"):
    run.checkpoints.wait()
  if step < num_steps:
    logging.info("Preempted: checkpoint saved at step %d, exiting.", step)
  return TrainResult(
    step=step,
    swaps=candidates.swaps,
    metrics=metrics.last,
    preempted=step < num_steps,
  )
