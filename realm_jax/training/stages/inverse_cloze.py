"""Inverse cloze: find the block that a sentence was taken from."""

import dataclasses

import numpy as np

from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batches import Batch
from realm_jax.partitioning.sharding import shared_partial
from realm_jax.training import stage_losses
from realm_jax.training.batches import InverseClozeBatch
from realm_jax.training.stages import protocol
from realm_jax.training.stages.model_inputs import ModelInputs, Models


@dataclasses.dataclass(frozen=True)
class InverseCloze(protocol.Stage):
  """A sentence finds its block among the blocks of the global batch."""

  components = ("retriever",)
  # Its negatives are all blocks of the global batch.
  is_divisible = False

  def loss(self, models: Models) -> stage_losses.Loss[InverseClozeBatch]:
    return shared_partial(stage_losses.inverse_cloze, models.retriever)

  def assemble(
    self, batch: Batch, retrieved: SearchResult, context: protocol.StageContext
  ) -> protocol.Assembled:
    arrays, inputs = batch.arrays, context.inputs
    queries, blocks = inputs.queries(arrays["query"]), arrays["block"]
    made = InverseClozeBatch(queries, inputs.blocks(blocks), arrays["removed"])
    return made, {}

  def example(
    self, shapes: protocol.ExampleArrays, inputs: ModelInputs
  ) -> InverseClozeBatch:
    return InverseClozeBatch(
      queries=inputs.queries(shapes.query),
      blocks=inputs.blocks(shapes.candidates[:, 0]),
      removed=np.zeros(len(shapes.query), bool),
    )
