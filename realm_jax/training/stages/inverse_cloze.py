"""Inverse cloze: find the block that a sentence was taken from."""

import dataclasses

import numpy as np

from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batch import Batch
from realm_jax.training.stages.contrastive import Contrastive, ContrastiveBatch
from realm_jax.training.stages.stage import (
  ExampleArrays,
  Features,
  StageContext,
)


@dataclasses.dataclass(frozen=True)
class InverseCloze(Contrastive):
  """A sentence finds its block among the blocks of the global batch.

  Accuracy is also reported for the sentences that were removed from their
  blocks and those that were not: where one remains, matching its words is
  enough.

  Attributes:
    shared_negatives: As in ANCE, the blocks that are mined for a sentence are
      negatives of no other.
  """

  shared_negatives: bool = False

  def features(
    self, batch: Batch, found: SearchResult | None, context: StageContext
  ) -> Features:
    made, metrics = super().features(batch, found, context)
    return made._replace(removed=batch.array("removed")), metrics

  def dummy_batch(self, shapes: ExampleArrays) -> ContrastiveBatch:
    removed = np.zeros(len(shapes.query), bool)
    return super().dummy_batch(shapes)._replace(removed=removed)
