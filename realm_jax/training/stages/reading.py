"""Reading: a reader that starts from nothing learns to read first."""

import dataclasses

import jax

from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batches import Batch
from realm_jax.models.parameters import Params
from realm_jax.training import step
from realm_jax.training.batches import ReadingBatch
from realm_jax.training.stages.model_inputs import ModelInputs, Models
from realm_jax.training.stages.protocol import (
  Assembled,
  ExampleArrays,
  Lengths,
  StageContext,
  empty_mask_targets,
  init_reader,
  mask_targets,
)


@dataclasses.dataclass(frozen=True)
class Reading:
  """A masked sentence is read beside the block that it was taken from.

  BERT's weights are the better start where they are available. The masked
  words are in the block, so a retriever would learn nothing from it (section
  3.4); neither the retriever nor the null block takes part.
  """

  needs_index = False
  current_queries = True
  num_candidates = 1

  def init(self, models: Models, lengths: Lengths, key: jax.Array) -> Params:
    return {"reader": init_reader(models, lengths, key)}

  def loss(self, models: Models) -> step.Loss[ReadingBatch]:
    return step.reading(models.require_reader())

  def num_searched(self, num_blocks: int) -> int:
    return 0

  def assemble(
    self, batch: Batch, retrieved: SearchResult, context: StageContext
  ) -> Assembled:
    rows = context.corpus.rows_of(batch.arrays["source_id"])[:, None]
    joint = context.inputs.joint(batch.arrays["query"], context.gather(rows))
    return Assembled(ReadingBatch(joint.rows, mask_targets(batch)), {})

  def example(self, shapes: ExampleArrays, inputs: ModelInputs) -> ReadingBatch:
    joint = inputs.joint(shapes.query, shapes.candidates)
    return ReadingBatch(joint.rows, empty_mask_targets(shapes))
