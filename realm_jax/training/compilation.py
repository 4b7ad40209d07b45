"""The steps of a run, compiled before the first of them."""

import functools
from collections.abc import Sequence

import jax

from realm_jax.partitioning import cpu_tuning, rules
from realm_jax.training.batches import StepBatch
from realm_jax.training.packing.shape_buckets import shape_key
from realm_jax.training.setup import RunSetup
from realm_jax.training.state import TrainState
from realm_jax.training.step import Metrics, train_step


class CompiledSteps:
  """`train_step` compiled for every shape and mode that a run will need.

  Nothing is compiled when a step is called: a batch of another shape raises a
  KeyError.

  Args:
    setup: What the run is made of.
    state: State before the first step, on the devices.
    shardings: Shardings of the state.
    batches: Abstract batches, one for each shape bucket.
  """

  def __init__(
    self,
    setup: RunSetup,
    state: TrainState,
    shardings: TrainState,
    batches: Sequence[StepBatch],
  ):
    config, mesh = setup.config, setup.mesh
    self._freeze_steps = config.optimizer.freeze_retriever_steps
    modes = []
    if int(state.step) < self._freeze_steps:
      modes.append(True)
    if self._freeze_steps < config.num_steps:
      modes.append(False)
    # By whether the retriever is frozen, and by `shape_key`.
    self._compiled: dict[tuple[bool, tuple[int, ...]], jax.stages.Compiled] = {}
    for frozen in modes:
      step = jax.jit(
        functools.partial(
          train_step,
          loss=setup.loss,
          optimizer=setup.optimizer,
          seed=config.data.seed,
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
