"""The steps of a run, compiled before the first of them."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from realm_jax.partitioning import cpu_tuning, sharding
from realm_jax.training.batches import StepBatch
from realm_jax.training.config import TrainConfig
from realm_jax.training.packing.shape_buckets import shape_key
from realm_jax.training.setup import StepSetup
from realm_jax.training.state import RollingState, TrainState
from realm_jax.training.step import Metrics, Microbatches, train_step

# Of a state, whose buffers are donated, a batch and the number of the step.
StepFunction = Callable[
  [TrainState, StepBatch, int], tuple[TrainState, Metrics]
]


def step_modes(config: TrainConfig, *, first_step: int) -> set[bool]:
  """Returns whether the retriever is frozen, for all modes that a run needs.

  Args:
    config: Configuration of the run.
    first_step: Number of the first step, from 0.
  """
  freeze_steps = config.optimizer.freeze_retriever_steps
  return {step < freeze_steps for step in (first_step, config.num_steps - 1)}


def jitted_step(
  setup: StepSetup,
  shardings: TrainState | RollingState,
  *,
  frozen: bool,
  function: Callable[..., tuple[Any, Metrics]] = train_step,
  **further: Any,
) -> jax.stages.Wrapped:
  """Returns a step as a run compiles it, for one mode.

  Args:
    setup: Parts of the step.
    shardings: Shardings of the state, whose buffers are donated.
    frozen: Whether the retriever is frozen.
    function: The step, of the state and arrays that depend on the function.
    further: Settings of this function beside those of `train_step`.
  """
  config, mesh = setup.config, setup.mesh
  return jax.jit(
    sharding.shared_partial(
      sharding.under(config.mesh.all_axis_rules, function),
      loss=setup.loss,
      optimizer=setup.optimizer,
      seed=config.data.seed,
      freeze_retriever=frozen,
      microbatches=Microbatches(
        config.num_microbatches, sharding.row_groups(mesh).count
      ),
      **further,
    ),
    donate_argnums=0,
    out_shardings=(shardings, sharding.replicated(mesh)),
  )


def compile_steps(
  setup: StepSetup,
  state: TrainState,
  batches: Sequence[StepBatch],
) -> StepFunction:
  """Compiles `train_step` for every shape and mode that a run will need.

  `state` is that before the first step, on the devices, and `batches` has an
  abstract batch for each shape bucket. The result compiles nothing: a batch of
  another shape raises a KeyError.
  """
  config, mesh = setup.config, setup.mesh
  shardings = jax.tree.map(lambda array: array.sharding, state)
  freeze_steps = config.optimizer.freeze_retriever_steps
  # By whether the retriever is frozen, and by `shape_key`.
  compiled: dict[tuple[bool, tuple[int, ...]], jax.stages.Compiled] = {}
  for frozen in step_modes(config, first_step=int(state.step)):
    step_of_mode = jitted_step(setup, shardings, frozen=frozen)
    for batch in batches:
      with jax.set_mesh(mesh):
        lowered = step_of_mode.lower(state, batch)
      compiled[frozen, shape_key(batch)] = lowered.compile(
        cpu_tuning.compiler_options(mesh)
      )
  cpu_tuning.return_freed_memory()

  def run_step(
    state: TrainState, batch: StepBatch, step: int
  ) -> tuple[TrainState, Metrics]:
    # A copy from the host that nobody has asked for is an error.
    with jax.transfer_guard("disallow"):
      return compiled[step < freeze_steps, shape_key(batch)](state, batch)

  return run_step
