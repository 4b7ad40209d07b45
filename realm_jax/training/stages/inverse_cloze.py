"""Inverse cloze: find the block that a sentence was taken from."""

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Int, UInt32

from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batch import Batch
from realm_jax.models import AnyArray
from realm_jax.models.packing import TokenRows
from realm_jax.objectives.inverse_cloze import inverse_cloze_loss
from realm_jax.objectives.weighted import WeightedLoss
from realm_jax.training.encoder_rows import EncoderRows
from realm_jax.training.stages import stage as stages


class InverseClozeBatch(NamedTuple):
  """Sentences and, in the same order, the blocks that they come from.

  `removed` tells whether the sentence was removed from its block.
  """

  query: Int[AnyArray, "b q"]
  block: Int[AnyArray, "b l"]
  removed: Bool[AnyArray, " b"]


@dataclasses.dataclass(frozen=True)
class InverseCloze(stages.Stage):
  """A sentence finds its block among the blocks of the global batch."""

  components = ("retriever",)
  # Its negatives are all blocks of the global batch.
  is_divisible = False

  def assemble(
    self, batch: Batch, retrieved: SearchResult, context: stages.StageContext
  ) -> stages.Assembled:
    names = InverseClozeBatch._fields
    return InverseClozeBatch(*(batch.arrays[name] for name in names)), {}

  def example(self, shapes: stages.ExampleArrays) -> InverseClozeBatch:
    removed = np.zeros(len(shapes.query), bool)
    return InverseClozeBatch(shapes.query, shapes.candidates[:, 0], removed)

  def rows(
    self,
    models: stages.Models,
    batch: InverseClozeBatch,
    numbers: UInt32[Array, " b"],
  ) -> EncoderRows:
    retriever = models.retriever
    return EncoderRows(
      queries=TokenRows(retriever.query_input(batch.query), numbers),
      blocks=TokenRows(retriever.block_input(batch.block), numbers),
    )

  def loss(
    self,
    encoders: stages.Encoders,
    batch: InverseClozeBatch,
    rows: EncoderRows,
  ) -> WeightedLoss:
    queries, blocks = encoders.retriever(rows.queries, rows.blocks)
    scale = encoders.models.retriever.score_scale
    return inverse_cloze_loss(queries, blocks, batch.removed, score_scale=scale)
