"""Reading: a reader that starts from nothing learns to read first."""

import dataclasses

import numpy as np
from jaxtyping import Int64

from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batches import Batch
from realm_jax.models.packing import TokenRows
from realm_jax.models.sequences import PAD_ID
from realm_jax.partitioning.jit_cache import shared_partial
from realm_jax.text.wordpieces import WordpieceVocabulary
from realm_jax.training import step
from realm_jax.training.batches import MaskTargets, ReadingBatch
from realm_jax.training.stages import protocol
from realm_jax.training.stages.model_inputs import ModelInputs, Models


@dataclasses.dataclass(frozen=True)
class Reading(protocol.Stage):
  """A masked sentence is read beside the block that it was taken from.

  BERT's weights are the better start where they are available. The masked
  words are in the block, so a retriever would learn nothing from it (section
  3.4); neither the retriever nor the null block takes part.

  Attributes:
    num_random_masks: Number of tokens of sentence and block that are masked
      besides, as in BERT's pre-training (Devlin et al. 2019). A reader with
      random initial weights learns much faster from many masks than from one
      name, because they teach it which words are neighbours.
  """

  num_random_masks: int = 0
  components = ("reader",)

  def loss(self, models: Models) -> step.Loss[ReadingBatch]:
    return shared_partial(step.reading, models.require_reader())

  def assemble(
    self, batch: Batch, retrieved: SearchResult, context: protocol.StageContext
  ) -> protocol.Assembled:
    examples = context.examples or context.corpus
    rows = examples.rows_of(batch.arrays["source_id"])[:, None]
    blocks = examples.gather(rows, context.block_length)
    joint = context.inputs.joint(batch.arrays["query"], blocks).rows
    masks = protocol.mask_targets(batch)
    if self.num_random_masks:
      joint, masks = self._with_random_masks(
        joint, masks, batch.positions, context.corpus.vocabulary
      )
    return ReadingBatch(joint, masks), {}

  def example(
    self, shapes: protocol.ExampleArrays, inputs: ModelInputs
  ) -> ReadingBatch:
    joint = inputs.joint(shapes.query, shapes.candidates)
    masks = protocol.empty_mask_targets(
      shapes._replace(max_masks=shapes.max_masks + self.num_random_masks)
    )
    return ReadingBatch(joint.rows, masks)

  def _with_random_masks(
    self,
    joint: TokenRows,
    masks: MaskTargets,
    positions: Int64[np.ndarray, " b"],
    words: WordpieceVocabulary,
  ) -> tuple[TokenRows, MaskTargets]:
    """Masks tokens of joint inputs, and adds them to the targets."""
    token_ids = joint.token_ids.copy()
    specials = [PAD_ID, words.cls_id, words.sep_id, words.mask_id]
    is_word = ~np.isin(token_ids, specials)
    shape = (len(token_ids), self.num_random_masks)
    chosen, weights = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
    for row, position in enumerate(positions.tolist()):
      generator = np.random.default_rng(position + 1)
      places = generator.permutation(np.flatnonzero(is_word[row]))
      places = places[: self.num_random_masks]
      chosen[row, : len(places)] = places
      weights[row, : len(places)] = 1.0
    targets = np.take_along_axis(token_ids, chosen, axis=1)
    rows, columns = np.nonzero(weights)
    token_ids[rows, chosen[rows, columns]] = words.mask_id
    added = MaskTargets(chosen, targets, weights)
    return joint._replace(token_ids=token_ids), MaskTargets(
      *(np.concatenate(pair, axis=1) for pair in zip(masks, added, strict=True))
    )
