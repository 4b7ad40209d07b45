"""Compilation of the steps of a run that keeps its own index."""

from typing import Any

import jax

from realm_jax.indexes.exact_search import Plan
from realm_jax.retrieval.rolling_refresh import Slice
from realm_jax.training.batches import RetrievingBatch
from realm_jax.training.compilation import jitted_step
from realm_jax.training.device_retrieval.compilation import (
  RetrievingSteps,
  shardings_of,
)
from realm_jax.training.device_retrieval.rolling_refresh.own_index import (
  OwnIndex,
)
from realm_jax.training.device_retrieval.rolling_refresh.step import (
  rolling_step,
)
from realm_jax.training.device_retrieval.step import RetrievalSettings
from realm_jax.training.packing.packer import Packer
from realm_jax.training.setup import StepSetup
from realm_jax.training.state import RollingState, TrainState
from realm_jax.training.step import Metrics


def jitted_rolling_step(
  setup: StepSetup,
  shardings: RollingState,
  *,
  bucket: tuple[int, ...] | None,
  plan: Plan,
  part: Slice,
  num_blocks: int,
  frozen: bool,
) -> jax.stages.Wrapped:
  """Returns `rolling_step` as a run compiles it, for one mode.

  Args:
    setup: Parts of the step.
    shardings: Shardings of the state and the vectors.
    bucket: Usual number of rows; None where sequences are not packed.
    plan: Settings of the search.
    part: What each device embeds.
    num_blocks: Number of blocks, without padding.
    frozen: Whether the retriever is frozen.
  """
  models = setup.inputs.models
  return jitted_step(
    setup,
    shardings,
    frozen=frozen,
    function=rolling_step,
    part=part,
    num_blocks=num_blocks,
    plan=plan,
    settings=RetrievalSettings(
      num_candidates=setup.config.stage.num_candidates,
      current_queries=True,
      bucket=bucket,
      mesh=setup.mesh,
    ),
    retriever=models.retriever,
    reader=models.require_reader(),
  )


class RollingSteps(RetrievingSteps):
  """The steps of a run that keeps its own index, which they replace."""

  def __init__(
    self,
    setup: StepSetup,
    state: TrainState,
    packer: Packer,
    index: OwnIndex,
  ):
    super().__init__(setup, state, packer)
    self._index = index

  def _key(self, batch: RetrievingBatch) -> Any:
    # Its corpus, and so all shapes, stay as they are.
    return batch.plan

  def _lowered(
    self, state: TrainState, batch: RetrievingBatch, *, frozen: bool
  ) -> jax.stages.Lowered:
    carried = RollingState(state, self._index.dated)
    step = jitted_rolling_step(
      self._setup,
      shardings_of(carried),
      bucket=self.bucket,
      plan=batch.plan,
      part=self._index.part,
      num_blocks=self._index.corpus.num_blocks,
      frozen=frozen,
    )
    return step.lower(carried, batch.examples, batch.searched.blocks)

  def _run(
    self,
    program: jax.stages.Compiled,
    state: TrainState,
    batch: RetrievingBatch,
  ) -> tuple[TrainState, Metrics]:
    carried, metrics = program(
      RollingState(state, self._index.dated),
      batch.examples,
      batch.searched.blocks,
    )
    self._index.dated = carried.dated
    return carried.training, metrics
