"""Compilation of steps that retrieve on the devices."""

from typing import Any, TypeVar

import jax
from absl import logging

from realm_jax.indexes.exact_search import Plan
from realm_jax.partitioning import cpu_tuning
from realm_jax.training.batches import RetrievingBatch, StepBatch
from realm_jax.training.compilation import jitted_step, step_modes
from realm_jax.training.device_retrieval.step import (
  RetrievalSettings,
  retrieving_step,
)
from realm_jax.training.packing.packer import Packer, ShapeBucket
from realm_jax.training.setup import StepSetup
from realm_jax.training.state import TrainState
from realm_jax.training.step import Metrics

T = TypeVar("T")


def jitted_retrieving_step(
  setup: StepSetup,
  shardings: TrainState,
  *,
  bucket: tuple[int, ...] | None,
  plan: Plan,
  frozen: bool,
) -> jax.stages.Wrapped:
  """Returns `retrieving_step` as a run compiles it, for one mode.

  Args:
    setup: Parts of the step.
    shardings: Shardings of the state.
    bucket: Usual number of rows; None where sequences are not packed.
    plan: Settings of the search.
    frozen: Whether the retriever is frozen.
  """
  stage, models = setup.config.stage, setup.inputs.models
  return jitted_step(
    setup,
    shardings,
    frozen=frozen,
    function=retrieving_step,
    plan=plan,
    settings=RetrievalSettings(
      num_candidates=stage.num_candidates,
      current_queries=stage.current_queries,
      bucket=bucket,
      mesh=setup.mesh,
    ),
    retriever=models.retriever,
    reader=models.require_reader(),
  )


class RetrievingSteps:
  """The steps of a run that retrieves on the devices.

  They are compiled when the first generation is there, since its vectors'
  number and type are part of the program, and again only where a later one has
  other shapes: a corpus that has outgrown its capacity.

  Args:
    setup: Parts of the step.
    state: State before the first step, on the devices.
    packer: Packer with the shape buckets of the run.

  Attributes:
    bucket: Usual number of rows of each group, for each encoder input; None
      where sequences are not packed.
    programs: Compiled steps, by whether the retriever is frozen and by what
      the program depends on.
  """

  def __init__(self, setup: StepSetup, state: TrainState, packer: Packer):
    self._setup = setup
    config = setup.config
    self._shardings = shardings_of(state)
    self._freeze_steps = config.optimizer.freeze_retriever_steps
    self._modes = step_modes(config, first_step=int(state.step))
    self.bucket = usual_bucket(packer)
    self.programs: dict[tuple[bool, Any], jax.stages.Compiled] = {}

  def __call__(
    self, state: TrainState, batch: StepBatch, step: int
  ) -> tuple[TrainState, Metrics]:
    """Runs a step, whose state is donated."""
    assert isinstance(batch, RetrievingBatch)
    frozen, key = step < self._freeze_steps, self._key(batch)
    if (frozen, key) not in self.programs:
      self._compile(state, batch, key)
    # A copy from the host that nobody has asked for is an error.
    with jax.transfer_guard("disallow"):
      return self._run(self.programs[frozen, key], state, batch)

  def _compile(
    self, state: TrainState, batch: RetrievingBatch, key: Any
  ) -> None:
    """Compiles the step for all modes that the run will need."""
    mesh = self._setup.mesh
    if self.programs:
      logging.info("the corpus has outgrown its capacity: compiling the step")
    for frozen in self._modes:
      with jax.set_mesh(mesh):
        lowered = self._lowered(state, batch, frozen=frozen)
      self.programs[frozen, key] = lowered.compile(
        cpu_tuning.compiler_options(mesh)
      )
    cpu_tuning.return_freed_memory()

  def _key(self, batch: RetrievingBatch) -> Any:
    """Returns what the program of a batch depends on."""
    vectors, blocks = batch.searched.vectors, batch.searched.blocks
    assert vectors is not None
    return (
      batch.plan,
      vectors.vectors.shape,
      vectors.vectors.dtype,
      blocks.tokens.shape,
    )

  def _lowered(
    self, state: TrainState, batch: RetrievingBatch, *, frozen: bool
  ) -> jax.stages.Lowered:
    """Lowers the step for one mode."""
    step = jitted_retrieving_step(
      self._setup,
      self._shardings,
      bucket=self.bucket,
      plan=batch.plan,
      frozen=frozen,
    )
    return step.lower(state, batch.examples, batch.searched)

  def _run(
    self,
    program: jax.stages.Compiled,
    state: TrainState,
    batch: RetrievingBatch,
  ) -> tuple[TrainState, Metrics]:
    """Runs a compiled step."""
    return program(state, batch.examples, batch.searched)


def usual_bucket(packer: Packer) -> ShapeBucket | None:
  """Returns the usual shape bucket; None where it holds a row for each."""
  usual, largest = packer.buckets[0], packer.buckets[-1]
  return None if usual == largest else usual


def shardings_of(tree: T) -> T:
  """Returns the shardings of a tree's arrays."""
  return jax.tree.map(lambda array: array.sharding, tree)
