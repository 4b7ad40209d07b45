"""Inverse cloze: find the block that a sentence was taken from."""

import dataclasses

import jax
import numpy as np

from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batches import Batch
from realm_jax.models.parameters import Params
from realm_jax.training import step
from realm_jax.training.batches import InverseClozeBatch
from realm_jax.training.stages.model_inputs import ModelInputs, Models
from realm_jax.training.stages.protocol import (
  Assembled,
  ExampleArrays,
  Lengths,
  StageContext,
  tokens,
)


@dataclasses.dataclass(frozen=True)
class InverseCloze:
  """A sentence finds its block among the blocks of the global batch."""

  needs_index = False
  current_queries = True
  num_candidates = 1

  def init(self, models: Models, lengths: Lengths, key: jax.Array) -> Params:
    query = tokens(1, lengths["query"])
    block = tokens(1, lengths["block"])
    return {"retriever": models.retriever.init(key, query, block)["params"]}

  def loss(self, models: Models) -> step.Loss[InverseClozeBatch]:
    return step.inverse_cloze(models.retriever)

  def num_searched(self, num_blocks: int) -> int:
    return 0

  def assemble(
    self, batch: Batch, retrieved: SearchResult, context: StageContext
  ) -> Assembled:
    arrays = batch.arrays
    made = InverseClozeBatch(
      queries=context.inputs.queries(arrays["query"]),
      blocks=context.inputs.blocks(arrays["block"]),
      removed=arrays["removed"],
    )
    return Assembled(made, {})

  def example(
    self, shapes: ExampleArrays, inputs: ModelInputs
  ) -> InverseClozeBatch:
    return InverseClozeBatch(
      queries=inputs.queries(shapes.query),
      blocks=inputs.blocks(shapes.candidates[:, 0]),
      removed=np.zeros(len(shapes.query), bool),
    )
