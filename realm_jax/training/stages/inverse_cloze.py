"""Inverse cloze: find the block that a sentence was taken from."""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batch import Batch
from realm_jax.models import AnyArray
from realm_jax.models.packing import TokenRows
from realm_jax.models.parameters import Params
from realm_jax.objectives.inverse_cloze import inverse_cloze_loss
from realm_jax.objectives.weighted import WeightedLoss
from realm_jax.partitioning.sharding import shared_partial
from realm_jax.training.encoder_rows import EncoderRows
from realm_jax.training.stages import stage as stages
from realm_jax.training.step import ComparingLoss, RowsOf


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

  def functions(
    self, models: stages.Models
  ) -> tuple[RowsOf[InverseClozeBatch], ComparingLoss]:
    rows_of, _ = super().functions(models)
    return rows_of, ComparingLoss(
      shared_partial(_embed, self, models),
      shared_partial(_compare, models.retriever.score_scale),
    )

  def loss(
    self,
    encoders: stages.Encoders,
    batch: InverseClozeBatch,
    rows: EncoderRows,
  ) -> WeightedLoss:
    vectors = encoders.retriever(rows.queries, rows.blocks)
    return _compare(encoders.models.retriever.score_scale, vectors, batch)


# From here on: the two parts of the loss, of which the second alone looks at
# the whole batch.


def _embed(
  stage: InverseCloze,
  models: stages.Models,
  params: Params,
  rows: EncoderRows,
  dropout_key: jax.Array | None,
) -> tuple[Float[Array, "b d"], Float[Array, "b d"]]:
  encoders = stages.encoders_of(stage, models, params, dropout_key)
  return encoders.retriever(rows.queries, rows.blocks)


def _compare(
  score_scale: float,
  vectors: tuple[Float[Array, "b d"], Float[Array, "b d"]],
  batch: InverseClozeBatch,
) -> WeightedLoss:
  return inverse_cloze_loss(*vectors, batch.removed, score_scale=score_scale)
