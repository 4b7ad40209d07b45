"""The steps of a run, compiled ahead of time."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
from absl import logging

from realm_jax.partitioning import cpu_tuning, sharding
from realm_jax.training.encoder_rows import RowLayout
from realm_jax.training.search_in_step import search_in_step
from realm_jax.training.setup import StepSetup
from realm_jax.training.stages.stage import StepBatch
from realm_jax.training.step import Metrics, TrainState, train_step


class CompiledSteps:
  """The steps of a run, which are compiled in each mode that it will need.

  A step that searches depends on the number and the type of all vectors. It is
  compiled when these are known, and again only where a later generation has
  other shapes: a corpus that has outgrown its capacity.

  Args:
    setup: Parts of the step.
    layout: How sequences are laid out in rows.
    refresh: Function that embeds a slice again, in a run that keeps its own
      index (`rolling_index.refresh_of`).

  Attributes:
    programs: Compiled steps, by whether the retriever is frozen and by the
      shapes of what is searched.
  """

  def __init__(
    self,
    setup: StepSetup,
    layout: RowLayout,
    refresh: Callable[..., Any] | None = None,
  ):
    self._setup = setup
    self._layout = layout
    config = setup.config
    self._search = config.stage.proposer(setup.models, seed=config.data.seed)
    if config.retrieve_on_device:
      self._search = sharding.shared_partial(
        search_in_step,
        retriever=setup.models.retriever,
        num_candidates=config.stage.num_candidates,
        current_queries=config.stage.current_queries or config.keeps_own_index,
        mesh=setup.mesh,
        refresh=refresh,
      )
    self.programs: dict[tuple[bool, Any], jax.stages.Compiled] = {}

  def compile(
    self, state: TrainState, batch: StepBatch, searched: Any = None
  ) -> None:
    """Compiles the step; the arrays, and those of a batch, may be abstract."""
    first_step = int(state.step)
    options = cpu_tuning.compiler_options(self._setup.mesh)
    for frozen, lowered in self.lower(state, batch, searched, first_step):
      self.programs[frozen, _shapes(searched)] = lowered.compile(options)
    cpu_tuning.return_freed_memory()

  def lower(
    self, state: TrainState, batch: StepBatch, searched: Any, first_step: int
  ) -> Iterator[tuple[bool, jax.stages.Lowered]]:
    """Yields the step in each mode that is needed from a first step on.

    A mode is whether the retriever is frozen. All arrays may be abstract; the
    buffers of the state are donated.
    """
    setup, config = self._setup, self._setup.config
    rows_of, loss = config.stage.functions(setup.models)
    shardings = jax.tree.map(lambda array: array.sharding, state)
    freeze_steps = config.optimizer.freeze_retriever_steps
    modes = {step < freeze_steps for step in (first_step, config.num_steps - 1)}
    for frozen in sorted(modes):
      step = jax.jit(
        sharding.under(
          config.mesh.all_axis_rules,
          train_step,
          rows_of=rows_of,
          loss=loss,
          layout=self._layout,
          optimizer=setup.optimizer,
          seed=config.data.seed,
          freeze_retriever=frozen,
          num_microbatches=config.num_microbatches,
          search=self._search,
        ),
        donate_argnums=0,
        out_shardings=(shardings, sharding.replicated(setup.mesh)),
      )
      with jax.set_mesh(setup.mesh):
        lowered = step.lower(state, batch, searched)
      yield frozen, lowered

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
