"""Inverse cloze: find the block that a sentence was taken from."""

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Int

from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batch import Batch
from realm_jax.models import AnyArray
from realm_jax.models.components import Components
from realm_jax.models.packing import TokenSequences
from realm_jax.objectives.inverse_cloze import inverse_cloze_loss
from realm_jax.objectives.weighted import WeightedLoss
from realm_jax.settings import NonNegativeInt
from realm_jax.training.encoder_inputs import EncoderInputs
from realm_jax.training.retrieval import Retrieval, at_places
from realm_jax.training.stages.stage import (
  Encoders,
  ExampleArrays,
  Features,
  Stage,
  StageContext,
)

# Blocks that are searched for beside the negatives and the sentence's own, so
# that its verbatim copies can also be dropped.
_NUM_SPARE = 2
_Vectors = tuple[Float[Array, "b d"], Float[Array, "b k d"]]


class InverseClozeBatch(NamedTuple):
  """Sentences and the blocks that they come from.

  Attributes:
    blocks: The block of each sentence, and after it the hard negatives.
    removed: Whether the sentence was removed from its block.
  """

  query: Int[AnyArray, "b q"]
  blocks: Int[AnyArray, "b k l"]
  removed: Bool[AnyArray, " b"]


@dataclasses.dataclass(frozen=True)
class InverseCloze(Stage):
  """A sentence finds its block among the blocks of the global batch.

  Attributes:
    num_hard_negatives: Number of blocks that the present snapshot retrieves
      for each sentence by its own query tower, among which the sentence's block
      has to be found, too (ANCE, Xiong et al. 2020, arXiv 2007.00808). This
      block and its verbatim copies are none of them. With 0 there is no index.
  """

  num_hard_negatives: NonNegativeInt = 0
  evaluation = "gin/runs/eval_retrieval.gin"
  components = ("retriever",)
  compares = True

  @property
  def retrieval(self) -> Retrieval | None:
    if not self.num_hard_negatives:
      return None
    return Retrieval(
      self.num_hard_negatives,
      setting="NUM_HARD_NEGATIVES",
      num_spare=_NUM_SPARE,
      drop_source=True,
      current_queries=False,
    )

  @property
  def num_candidates(self) -> int:
    return 1 + self.num_hard_negatives

  def features(
    self, batch: Batch, found: SearchResult | None, context: StageContext
  ) -> Features:
    query, removed = batch.arrays["query"], batch.arrays["removed"]
    blocks = batch.arrays["block"][:, None]
    if self.retrieval is not None and found is not None:
      places = context.places(self.retrieval, batch, found.rows)
      rows = np.asarray(at_places(found.rows, places))
      blocks = np.concatenate([blocks, context.gather(rows)], axis=1)
    return InverseClozeBatch(query, blocks, removed), {}

  def dummy_batch(self, shapes: ExampleArrays) -> InverseClozeBatch:
    removed = np.zeros(len(shapes.query), bool)
    return InverseClozeBatch(shapes.query, shapes.candidates, removed)

  def inputs(
    self, components: Components, batch: InverseClozeBatch
  ) -> EncoderInputs:
    retriever, length = components.retriever, batch.blocks.shape[-1]
    return EncoderInputs(
      queries=TokenSequences(retriever.query_input(batch.query)),
      blocks=TokenSequences(
        retriever.block_input(batch.blocks.reshape(-1, length))
      ),
    )

  def loss(
    self, encoders: Encoders, batch: InverseClozeBatch, inputs: EncoderInputs
  ) -> WeightedLoss:
    vectors = self.embed(encoders, inputs)
    return self.compare(encoders.components, vectors, batch)

  def embed(self, encoders: Encoders, inputs: EncoderInputs) -> _Vectors:
    """Returns the vectors of queries, and of the blocks of each."""
    queries, blocks = encoders.apply("retriever", inputs.queries, inputs.blocks)
    return queries, blocks.reshape(len(queries), -1, blocks.shape[-1])

  def compare(
    self, components: Components, vectors: _Vectors, batch: InverseClozeBatch
  ) -> WeightedLoss:
    """Returns the loss of the vectors of all examples."""
    queries, blocks = vectors
    return inverse_cloze_loss(
      queries,
      blocks[:, 0],
      batch.removed,
      negatives=blocks[:, 1:],
      score_scale=components.retriever.score_scale,
    )
