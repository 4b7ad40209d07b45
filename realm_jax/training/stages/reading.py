"""Reading: a reader that starts from nothing learns to read first."""

import dataclasses

from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batches import Batch
from realm_jax.partitioning.jit_cache import shared_partial
from realm_jax.training import step
from realm_jax.training.batches import ReadingBatch
from realm_jax.training.stages import protocol
from realm_jax.training.stages.model_inputs import ModelInputs, Models


@dataclasses.dataclass(frozen=True)
class Reading(protocol.Stage):
  """A masked sentence is read beside the block that it was taken from.

  BERT's weights are the better start where they are available. The masked
  words are in the block, so a retriever would learn nothing from it (section
  3.4); neither the retriever nor the null block takes part.
  """

  components = ("reader",)

  def loss(self, models: Models) -> step.Loss[ReadingBatch]:
    return shared_partial(step.reading, models.require_reader())

  def assemble(
    self, batch: Batch, retrieved: SearchResult, context: protocol.StageContext
  ) -> protocol.Assembled:
    examples = context.examples or context.corpus
    rows = examples.rows_of(batch.arrays["source_id"])[:, None]
    blocks = examples.gather(rows, context.block_length)
    joint = context.inputs.joint(batch.arrays["query"], blocks)
    return ReadingBatch(joint.rows, protocol.mask_targets(batch)), {}

  def example(
    self, shapes: protocol.ExampleArrays, inputs: ModelInputs
  ) -> ReadingBatch:
    joint = inputs.joint(shapes.query, shapes.candidates)
    return ReadingBatch(joint.rows, protocol.empty_mask_targets(shapes))
