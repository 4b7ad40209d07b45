"""Reading: a reader that starts from nothing learns to read first."""

import dataclasses

from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batches import Batch
from realm_jax.partitioning.sharding import shared_partial
from realm_jax.settings import NonNegativeFloat, PositiveInt, require_valid
from realm_jax.training import stage_losses
from realm_jax.training.batches import ReadingBatch
from realm_jax.training.stages import protocol
from realm_jax.training.stages.model_inputs import ModelInputs, Models
from realm_jax.training.stages.span_targets import (
  masked_spans,
  no_spans,
  require_width,
)


@dataclasses.dataclass(frozen=True)
class Reading(protocol.Stage):
  """A masked sentence is read beside the block that it was taken from.

  BERT's weights are the better start where they are available. The masked
  words are in the block, so a retriever would learn nothing from it (section
  3.4); neither the retriever nor the null block takes part.

  Attributes:
    span_weight: Weight of each example's loss of pointing at the masked words
      in the block, beside that of filling them in.
    max_answer_width: Width of the widest span to point at, in tokens, as in the
      reader.
  """

  span_weight: NonNegativeFloat = 0.0
  max_answer_width: PositiveInt = 10
  components = ("reader",)

  def __post_init__(self) -> None:
    require_valid(self)

  def loss(self, models: Models) -> stage_losses.Loss[ReadingBatch]:
    reader = models.require_reader()
    if self.span_weight:
      require_width(reader, self.max_answer_width, "Reading")
    return shared_partial(
      stage_losses.reading, reader, span_weight=self.span_weight
    )

  def assemble(
    self, batch: Batch, retrieved: SearchResult, context: protocol.StageContext
  ) -> protocol.Assembled:
    examples = context.examples or context.corpus
    rows = examples.rows_of(batch.arrays["source_id"])[:, None]
    blocks = examples.gather(rows, context.block_length)
    joint = context.inputs.joint(batch.arrays["query"], blocks)
    masks = protocol.mask_targets(batch)
    if not self.span_weight:
      return ReadingBatch(joint.rows, masks), {}
    spans = masked_spans(
      joint,
      masks,
      num_starts=context.block_length,
      max_width=self.max_answer_width,
    )
    return ReadingBatch(joint.rows, masks, spans), {}

  def example(
    self, shapes: protocol.ExampleArrays, inputs: ModelInputs
  ) -> ReadingBatch:
    joint = inputs.joint(shapes.query, shapes.candidates)
    masks = protocol.empty_mask_targets(shapes)
    if not self.span_weight:
      return ReadingBatch(joint.rows, masks)
    width = self.max_answer_width
    spans = no_spans(joint, shapes.candidates, max_width=width)
    return ReadingBatch(joint.rows, masks, spans)
