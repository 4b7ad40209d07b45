"""The steps of a run, compiled ahead of time."""

from typing import Any

import jax
from absl import logging

from realm_jax.partitioning import cpu_tuning, sharding
from realm_jax.training.config import TrainConfig
from realm_jax.training.own_index import OwnIndex
from realm_jax.training.row_layout import RowLayout
from realm_jax.training.search_in_step import SearchInStep
from realm_jax.training.setup import StepSetup
from realm_jax.training.stages.stage import StepBatch
from realm_jax.training.state import TrainState
from realm_jax.training.step import Metrics, train_step


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
  state: TrainState,
  layout: RowLayout,
  *,
  frozen: bool,
  search: SearchInStep | None = None,
) -> jax.stages.Wrapped:
  """Returns `train_step` as a run compiles it, for one mode.

  Args:
    setup: Parts of the step.
    state: State, whose buffers are donated, or abstract arrays like it.
    layout: How sequences are laid out in rows.
    frozen: Whether the retriever is frozen.
    search: Search in the step, if it retrieves its own candidates.
  """
  config, mesh = setup.config, setup.mesh
  shardings = jax.tree.map(lambda array: array.sharding, state)
  return jax.jit(
    sharding.shared_partial(
      sharding.under(config.mesh.all_axis_rules, train_step),
      rows_of=setup.rows_of,
      loss=setup.loss,
      layout=layout,
      optimizer=setup.optimizer,
      seed=config.data.seed,
      freeze_retriever=frozen,
      num_microbatches=config.num_microbatches,
      search=search,
    ),
    donate_argnums=0,
    out_shardings=(shardings, sharding.replicated(mesh)),
  )


class CompiledSteps:
  """The steps of a run, which are compiled in each mode that it will need.

  A step that searches depends on the number and the type of all vectors. It is
  compiled when these are known, and again only where a later generation has
  other shapes: a corpus that has outgrown its capacity.

  Args:
    setup: Parts of the step.
    layout: How sequences are laid out in rows.
    own_index: Index that the run keeps itself, if it does.

  Attributes:
    programs: Compiled steps, by whether the retriever is frozen and by the
      shapes of what is searched.
  """

  def __init__(
    self,
    setup: StepSetup,
    layout: RowLayout,
    own_index: OwnIndex | None = None,
  ):
    self._setup = setup
    self._layout = layout
    self._search = None
    config = setup.config
    if config.retrieve_on_device:
      self._search = SearchInStep(
        retriever=setup.models.retriever,
        num_candidates=config.stage.num_candidates,
        current_queries=config.stage.current_queries or config.keeps_own_index,
        mesh=setup.mesh,
        refreshed=None if own_index is None else own_index.part,
      )
    self.programs: dict[tuple[bool, Any], jax.stages.Compiled] = {}

  def compile(
    self, state: TrainState, batch: StepBatch, searched: Any = None
  ) -> None:
    """Compiles the step; the arrays, and those of a batch, may be abstract."""
    mesh = self._setup.mesh
    config = self._setup.config
    for frozen in step_modes(config, first_step=int(state.step)):
      step = jitted_step(
        self._setup, state, self._layout, frozen=frozen, search=self._search
      )
      with jax.set_mesh(mesh):
        lowered = step.lower(state, batch, searched)
      self.programs[frozen, _shapes(searched)] = lowered.compile(
        cpu_tuning.compiler_options(mesh)
      )
    cpu_tuning.return_freed_memory()

  def __call__(
    self, state: TrainState, batch: StepBatch, searched: Any, step: int
  ) -> tuple[TrainState, Metrics]:
    """Runs a step, whose state is donated."""
    frozen = step < self._setup.config.optimizer.freeze_retriever_steps
    key = frozen, _shapes(searched)
    if key not in self.programs:
      if self.programs:
        logging.info("the corpus has outgrown its capacity: compiling the step")
      self.compile(state, batch, searched)
    # A copy from the host that nobody has asked for is an error.
    with jax.transfer_guard("disallow"):
      return self.programs[key](state, batch, searched)


def _shapes(searched: Any) -> Any:
  """Returns what a program depends on: static values, shapes and types."""
  leaves, structure = jax.tree.flatten(searched)
  return structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
