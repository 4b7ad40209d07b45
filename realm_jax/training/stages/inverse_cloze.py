"""Inverse cloze: find the block from which a sentence was taken."""

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

  Accuracy is also reported separately for sentences that were removed from
  their blocks, and for the others, for which matching words is enough.

  Attributes:
    shared_negatives: Whether mined blocks are negatives of all sentences. By
      default, as in ANCE, they are only negatives of the sentence for which
      they were mined.
  """

  shared_negatives: bool = False

  def features(
    self, batch: Batch, found: SearchResult | None, context: StageContext
  ) -> Features:
    features, metrics = super().features(batch, found, context)
    return features._replace(removed=batch.array("removed")), metrics

  def dummy_batch(self, shapes: ExampleArrays) -> ContrastiveBatch:
    removed = np.zeros(len(shapes.query), bool)
    return super().dummy_batch(shapes)._replace(removed=removed)
