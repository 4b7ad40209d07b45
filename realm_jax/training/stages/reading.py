"""Reading: a reader that starts from nothing learns to read first."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, UInt32

from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batch import Batch
from realm_jax.models import AnyArray
from realm_jax.models.parameters import Params
from realm_jax.objectives.masked_lm import marginal_masked_lm_loss
from realm_jax.objectives.weighted import WeightedLoss
from realm_jax.settings import NonNegativeFloat, require_valid
from realm_jax.training.encoder_rows import EncoderRows, joint_rows
from realm_jax.training.stages import masked_words
from realm_jax.training.stages import stage as stages
from realm_jax.training.stages.masked_words import MaskTargets


class ReadingBatch(NamedTuple):
  """Masked sentences, each with its own block."""

  query: Int[AnyArray, "b q"]
  blocks: Int[AnyArray, "b 1 l"]
  masks: MaskTargets


@dataclasses.dataclass(frozen=True)
class Reading(stages.Stage):
  """A masked sentence is read beside the block that it was taken from.

  BERT's weights are the better start where they are available. The masked
  words are in the block, so a retriever would learn nothing from it (section
  3.4); neither the retriever nor the null block takes part.

  Attributes:
    span_weight: Weight of each example's loss of pointing at the masked words
      in the block, beside that of filling them in.
  """

  span_weight: NonNegativeFloat = 0.0
  components = ("reader",)

  def __post_init__(self) -> None:
    require_valid(self)

  def assemble(
    self, batch: Batch, retrieved: SearchResult, context: stages.StageContext
  ) -> stages.Assembled:
    examples = context.examples or context.corpus
    rows = examples.rows_of(batch.arrays["source_id"])[:, None]
    blocks = examples.gather(rows, context.block_length)
    query = batch.arrays["query"]
    return ReadingBatch(query, blocks, MaskTargets.of(batch)), {}

  def example(self, shapes: stages.ExampleArrays) -> ReadingBatch:
    masks = MaskTargets.none(shapes)
    return ReadingBatch(shapes.query, shapes.candidates, masks)

  def rows(
    self,
    models: stages.Models,
    batch: ReadingBatch,
    numbers: UInt32[Array, " b"],
  ) -> EncoderRows:
    reader = models.require_reader()
    return joint_rows(reader, batch.query, batch.blocks, numbers)

  def loss(
    self,
    models: stages.Models,
    params: Params,
    batch: ReadingBatch,
    rows: EncoderRows,
    dropout_key: jax.Array | None,
  ) -> WeightedLoss:
    """Returns the masked-LM loss given one block; nothing is retrieved."""
    reader, masks = models.require_reader(), batch.masks
    logits, spans = masked_words.read_masks(
      reader,
      params["reader"],
      masks,
      rows,
      dropout_key,
      num_starts=batch.blocks.shape[-1] if self.span_weight else None,
    )
    masked_lm = marginal_masked_lm_loss(
      jnp.zeros(logits.shape[:2]),
      logits,
      masks.token_ids,
      masks.weights,
      has_null=False,
    )
    metrics = {"masked_accuracy": masked_lm.metrics["masked_accuracy"]}
    masked_lm = masked_lm._replace(metrics=metrics)
    if spans is None:
      return masked_lm
    assert rows.body_length is not None
    is_answer = masked_words.masked_spans(
      masks,
      batch.blocks,
      rows.body_length,
      separator_id=reader.bert.separator,
      max_width=reader.max_answer_width,
    )
    return masked_words.with_span_loss(
      masked_lm, spans, is_answer, weight=self.span_weight
    )
