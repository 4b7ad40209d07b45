"""Reading: a warm-up for a reader with random initial weights."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Int

from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batch import Batch
from realm_jax.models import AnyArray
from realm_jax.models.components import Components
from realm_jax.objectives.weighted import WeightedLoss
from realm_jax.settings import NonNegativeFloat
from realm_jax.training.encoder_inputs import EncoderInputs
from realm_jax.training.stages import masked_words
from realm_jax.training.stages.masked_words import MaskTargets
from realm_jax.training.stages.stage import (
  Encoders,
  ExampleArrays,
  Features,
  Stage,
  StageContext,
)


class ReadingBatch(NamedTuple):
  """Masked sentences, each with its own block."""

  query: Int[AnyArray, "b q"]
  blocks: Int[AnyArray, "b 1 l"]
  masks: MaskTargets


@dataclasses.dataclass(frozen=True)
class Reading(Stage):
  """A masked sentence is read together with its source block.

  If BERT's weights are available, they are a better start. The masked words are
  in the block, so a retriever would learn nothing (section 3.4); the retriever
  and the null block are not used.

  Attributes:
    span_weight: Weight of an example's loss for pointing at the masked words in
      the block. It is added to the loss for filling them in, and also divided
      by the number of masks.
  """

  span_weight: NonNegativeFloat = 0.0
  components = ("reader",)

  def features(
    self, batch: Batch, found: SearchResult | None, context: StageContext
  ) -> Features:
    del found
    examples = context.examples or context.corpus
    rows = examples.rows_of(batch.arrays["source_id"])[:, None]
    blocks = examples.gather(rows, context.block_length)
    query = batch.arrays["query"]
    return ReadingBatch(query, blocks, MaskTargets.of(batch)), {}

  def dummy_batch(self, shapes: ExampleArrays) -> ReadingBatch:
    masks = MaskTargets.none(shapes)
    return ReadingBatch(shapes.query, shapes.candidates, masks)

  def inputs(
    self, components: Components, batch: ReadingBatch
  ) -> EncoderInputs:
    read = components.token_reader.join(
      batch.query, batch.blocks, batch.masks.token_ids
    )
    return EncoderInputs(reader=read)

  def loss(
    self, encoders: Encoders, batch: ReadingBatch, inputs: EncoderInputs
  ) -> WeightedLoss:
    """Returns the masked-LM loss given one block; nothing is retrieved."""
    weighted = masked_words.loss_given_blocks(
      encoders,
      batch.masks,
      batch.blocks,
      inputs.reader,
      block_scores=jnp.zeros(batch.blocks.shape[:2]),
      has_null=False,
      span_weight=self.span_weight,
    )
    # Other metrics need several candidates.
    names = ("masked_accuracy", "span_accuracy")
    metrics = {n: weighted.metrics[n] for n in names if n in weighted.metrics}
    return weighted._replace(metrics=metrics)
