"""The steps of a run, compiled before the first of them."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import optax
from jax.sharding import Mesh

from realm_jax.partitioning import cpu_tuning, rules
from realm_jax.training.batches import StepBatch
from realm_jax.training.packing.packer import ShapeBucket
from realm_jax.training.packing.shape_buckets import shape_key
from realm_jax.training.state import TrainState
from realm_jax.training.step import Loss, Metrics, train_step


class CompiledSteps:
  """`train_step` compiled for every shape and mode that a run will need.

  Nothing is compiled when a step is called: a batch of another shape is an
  error.

  Args:
    state: State on the devices.
    batches: Abstract batches, one for each shape bucket.
    shardings: Shardings of the state.
    loss: Loss of the stage.
    optimizer: Optimizer of the run.
    seed: Seed of the dropout masks.
    mesh: Mesh of the run.
    num_steps: Steps of the run.
    freeze_retriever_steps: Number of first steps that do not train the
      retriever.
  """

  def __init__(
    self,
    state: TrainState,
    batches: Sequence[StepBatch],
    *,
    shardings: TrainState,
    loss: Loss[Any],
    optimizer: optax.GradientTransformation,
    seed: int,
    mesh: Mesh,
    num_steps: int,
    freeze_retriever_steps: int,
  ):
    self._freeze_steps = freeze_retriever_steps
    modes = []
    if int(state.step) < freeze_retriever_steps:
      modes.append(True)
    if freeze_retriever_steps < num_steps:
      modes.append(False)
    self._compiled: dict[tuple[bool, ShapeBucket], jax.stages.Compiled] = {}
    for frozen in modes:
      step = jax.jit(
        functools.partial(
          train_step,
          loss=loss,
          optimizer=optimizer,
          seed=seed,
          freeze_retriever=frozen,
        ),
        donate_argnums=0,
        out_shardings=(shardings, rules.replicated(mesh)),
      )
      for batch in batches:
        with rules.in_effect(mesh):
          lowered = step.lower(state, batch)
        self._compiled[frozen, shape_key(batch)] = lowered.compile(
          cpu_tuning.compiler_options(mesh)
        )
    cpu_tuning.return_freed_memory()

  def __call__(
    self, state: TrainState, batch: StepBatch, *, step: int
  ) -> tuple[TrainState, Metrics]:
    """Runs one step; the state's buffers are donated."""
    frozen = step < self._freeze_steps
    return self._compiled[frozen, shape_key(batch)](state, batch)
