"""REALM pre-training: masked words, the null block and retrieved blocks."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Int

from realm_jax.corpus.store import Corpus
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batches import Batch
from realm_jax.partitioning.jit_cache import shared_partial
from realm_jax.retrieval.candidate_rows import with_null, without_source
from realm_jax.retrieval.token_store import hash_words
from realm_jax.text.answer_spans import find_token_spans
from realm_jax.training import step
from realm_jax.training.batches import (
  MaskTargets,
  PretrainingBatch,
  UnretrievedBatch,
)
from realm_jax.training.stages import protocol
from realm_jax.training.stages.model_inputs import ModelInputs, Models


@dataclasses.dataclass(frozen=True)
class Pretraining(protocol.Stage):
  """A masked sentence, the null block and the blocks that the index retrieves.

  Attributes:
    num_candidates: Number of candidates, the null block included.
    num_spare: Number of blocks that are searched beside the candidates and the
      source, so that verbatim copies of the source can be dropped, too.
    form: Form of the marginal loss, `per_token` or `joint`.
    current_queries: Whether queries are embedded for the search with the
      current parameters instead of the generation's query tower (as released).
    read_gold: Whether candidates are taken first, of the searched blocks, from
      those that have the masked words. A reader with random initial weights
      learns from them to read what a retriever finds, before the retriever is
      trained (FREEZE_RETRIEVER_STEPS).
  """

  num_candidates: int = 8
  num_spare: int = 2
  form: str = "per_token"
  current_queries: bool = False
  read_gold: bool = False
  needs_index = True
  has_null_block = True
  retrieves_on_device = True

  def loss(self, models: Models) -> step.Loss[PretrainingBatch]:
    modules = models.retriever, models.require_reader()
    return shared_partial(step.pretraining, *modules, form=self.form)

  def num_searched(self, num_blocks: int) -> int:
    # The null block replaces one, and the source, once dropped, another.
    if self.num_candidates > num_blocks:
      raise ValueError(
        f"num_candidates={self.num_candidates} needs {self.num_candidates} "
        f"blocks (the null block replaces the source's), but the corpus has "
        f"{num_blocks}; lower NUM_CANDIDATES"
      )
    return min(self.num_candidates + self.num_spare, num_blocks)

  def candidate_rows(
    self, batch: Batch, retrieved: SearchResult, corpus: Corpus
  ) -> Int[np.ndarray, "b k"]:
    """Returns the candidates of each query but the null block, best first.

    The source and its verbatim copies are known by their hashes, in whichever
    corpus they are.
    """
    hashes = corpus.content_hashes[retrieved.rows]
    is_source = hashes == batch.array("source_hash")[:, None]
    num_kept = self.num_candidates - 1
    rows = retrieved.rows
    if self.read_gold:
      length = int(corpus.lengths.max())
      has_words = has_masked_words(
        protocol.mask_targets(batch), corpus.gather(rows, length)
      )
      order = np.argsort(~has_words, axis=1, kind="stable")
      rows = np.take_along_axis(rows, order, axis=1)
      is_source = np.take_along_axis(is_source, order, axis=1)
    return np.asarray(without_source(rows, is_source, num_kept=num_kept))

  def assemble(
    self, batch: Batch, retrieved: SearchResult, context: protocol.StageContext
  ) -> protocol.Assembled:
    rows = self.candidate_rows(batch, retrieved, context.corpus)
    candidates = context.gather(np.asarray(with_null(rows)))
    masks = protocol.mask_targets(batch)
    made = context.inputs.pretraining(batch.arrays["query"], candidates, masks)
    return made, {"recall": masked_recall(masks, candidates[:, 1:])}

  def unretrieved(self, batch: Batch) -> UnretrievedBatch:
    """Makes the batch of a step that retrieves its own candidates."""
    return UnretrievedBatch(
      query=batch.arrays["query"],
      source_hashes=hash_words(batch.array("source_hash")),
      masks=protocol.mask_targets(batch),
    )

  def example(
    self, shapes: protocol.ExampleArrays, inputs: ModelInputs
  ) -> PretrainingBatch:
    masks = protocol.empty_mask_targets(shapes)
    return inputs.pretraining(shapes.query, shapes.candidates, masks)


def masked_recall(
  masks: MaskTargets, blocks: Int[np.ndarray, "b n l"]
) -> float:
  """Returns the share of queries whose masked tokens occur in a block."""
  return float(has_masked_words(masks, blocks).any(axis=1).mean())


def has_masked_words(
  masks: MaskTargets, blocks: Int[np.ndarray, "b n l"]
) -> Bool[np.ndarray, "b n"]:
  """Returns which blocks have the masked tokens of their query.

  They count where they occur in the same order, one after the other.
  """
  batch, num_blocks, length = blocks.shape
  offsets = np.arange(num_blocks + 1) * length
  found = np.zeros((batch, num_blocks), bool)
  for row in range(batch):
    size = int(masks.weights[row].sum())
    answer = [masks.token_ids[row, :size].tolist()]
    spans = find_token_spans(blocks[row].reshape(-1), offsets, answer)
    found[row, spans.block] = True
  return found
