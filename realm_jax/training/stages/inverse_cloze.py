"""Inverse cloze: find the block that a sentence was taken from."""

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Int

from realm_jax.errors import RealmError
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batch import Batch
from realm_jax.models import AnyArray
from realm_jax.models.packing import TokenSequences
from realm_jax.objectives.inverse_cloze import inverse_cloze_loss
from realm_jax.objectives.weighted import WeightedLoss
from realm_jax.settings import NonNegativeInt
from realm_jax.training import encoder_inputs
from realm_jax.training.encoder_inputs import EncoderInputs
from realm_jax.training.stages.stage import (
  Assembled,
  Encoders,
  ExampleArrays,
  Models,
  Stage,
  StageContext,
)

# Blocks that are searched for beside the negatives and the sentence's own, so
# that its verbatim copies can be dropped, too.
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
  current_queries = False
  components = ("retriever",)
  compares = True

  @property
  def needs_index(self) -> bool:
    return self.num_hard_negatives > 0

  @property
  def num_candidates(self) -> int:
    return 1 + self.num_hard_negatives

  def num_searched(self, num_blocks: int) -> int:
    if not self.needs_index:
      return 0
    # The source is searched for, too, where it is then dropped.
    needed = self.num_hard_negatives + 1
    if needed > num_blocks:
      raise RealmError(
        f"num_hard_negatives={self.num_hard_negatives} needs {needed} blocks, "
        f"one of them the sentence's own, but the corpus has {num_blocks}; "
        "lower NUM_HARD_NEGATIVES"
      )
    return min(needed + _NUM_SPARE, num_blocks)

  def assemble(
    self, batch: Batch, retrieved: SearchResult | None, context: StageContext
  ) -> Assembled:
    query, removed = batch.arrays["query"], batch.arrays["removed"]
    blocks = batch.arrays["block"][:, None]
    if retrieved is not None:
      hashes = context.corpus.content_hashes[retrieved.rows]
      rows = encoder_inputs.without_source(
        retrieved.rows,
        hashes == batch.array("source_hash")[:, None],
        num_kept=self.num_hard_negatives,
      )
      negatives = context.gather(np.asarray(rows))
      blocks = np.concatenate([blocks, negatives], axis=1)
    return InverseClozeBatch(query, blocks, removed), {}

  def dummy_batch(self, shapes: ExampleArrays) -> InverseClozeBatch:
    removed = np.zeros(len(shapes.query), bool)
    return InverseClozeBatch(shapes.query, shapes.candidates, removed)

  def inputs(self, models: Models, batch: InverseClozeBatch) -> EncoderInputs:
    retriever, length = models.retriever, batch.blocks.shape[-1]
    return EncoderInputs(
      queries=TokenSequences(retriever.query_input(batch.query)),
      blocks=TokenSequences(
        retriever.block_input(batch.blocks.reshape(-1, length))
      ),
    )

  def loss(
    self, encoders: Encoders, batch: InverseClozeBatch, inputs: EncoderInputs
  ) -> WeightedLoss:
    return self.compare(encoders.models, self.embed(encoders, inputs), batch)

  def embed(self, encoders: Encoders, inputs: EncoderInputs) -> _Vectors:
    """Returns the vectors of queries, and of the blocks of each."""
    queries, blocks = encoders.apply("retriever", inputs.queries, inputs.blocks)
    return queries, blocks.reshape(len(queries), -1, blocks.shape[-1])

  def compare(
    self, models: Models, vectors: _Vectors, batch: InverseClozeBatch
  ) -> WeightedLoss:
    """Returns the loss of the vectors of all examples."""
    queries, blocks = vectors
    return inverse_cloze_loss(
      queries,
      blocks[:, 0],
      batch.removed,
      negatives=blocks[:, 1:],
      score_scale=models.retriever.score_scale,
    )
