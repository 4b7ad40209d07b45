"""REALM pre-training: masked words, the null block and retrieved blocks."""

import dataclasses
from typing import Annotated, Literal

import numpy as np
from jaxtyping import Bool, Int

from realm_jax.corpus.store import Corpus
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batches import Batch
from realm_jax.partitioning.sharding import shared_partial
from realm_jax.retrieval.candidate_rows import with_null, without_source
from realm_jax.retrieval.token_store import hash_words
from realm_jax.settings import (
  NonNegativeFloat,
  NonNegativeInt,
  OfRun,
  PositiveInt,
  require_valid,
)
from realm_jax.text.answer_spans import find_token_spans
from realm_jax.training import stage_losses
from realm_jax.training.batches import (
  MaskTargets,
  PretrainingBatch,
  UnretrievedBatch,
)
from realm_jax.training.stages import protocol
from realm_jax.training.stages.model_inputs import ModelInputs, Models
from realm_jax.training.stages.span_targets import (
  masked_spans,
  no_spans,
  require_width,
)


@dataclasses.dataclass(frozen=True)
class Pretraining(protocol.Stage):
  """A masked sentence, the null block and the blocks that the index retrieves.

  Attributes:
    num_candidates: Number of candidates, the null block included.
    num_spare: Number of blocks that are searched beside the candidates and the
      source, so that verbatim copies of the source can be dropped, too.
    loss_form: Form of the marginal loss, `per_token` or `joint`.
    null_block: Whether the first candidate is the null block (section 3.4).
    drop_source: Whether the block that a sentence is from, whose retrieval
      would be trivial, and its verbatim copies are no candidates (section 3.4).
    current_queries: Whether queries are embedded for the search with the
      current parameters instead of the generation's query tower (as released).
    read_gold: Whether candidates are taken first, of the searched blocks, from
      those that have the masked words. A reader with random initial weights
      learns from them to read what a retriever finds, before the retriever is
      trained (FREEZE_RETRIEVER_STEPS).
    span_weight: Weight of each example's loss of pointing at the masked words
      in its candidates, beside that of filling them in. The paper has none.
    max_answer_width: Width of the widest span to point at, in tokens, as in the
      reader.
  """

  num_candidates: Annotated[PositiveInt, OfRun()] = 8
  num_spare: Annotated[NonNegativeInt, OfRun()] = 2
  loss_form: Annotated[Literal["per_token", "joint"], OfRun()] = "per_token"
  current_queries: bool = False
  null_block: Annotated[bool, OfRun()] = True
  drop_source: Annotated[bool, OfRun()] = True
  read_gold: bool = False
  span_weight: NonNegativeFloat = 0.0
  max_answer_width: PositiveInt = 10
  needs_index = True

  def __post_init__(self) -> None:
    require_valid(self)

  @property
  def has_null_block(self) -> bool:
    return self.null_block

  @property
  def retrieves_on_device(self) -> bool:
    # The compiled program has no switches for the ablations of candidates, and
    # does not look for masked words in them.
    usual = self.null_block and self.drop_source
    return usual and not (self.read_gold or self.span_weight)

  def loss(self, models: Models) -> stage_losses.Loss[PretrainingBatch]:
    modules = models.retriever, models.require_reader()
    if self.span_weight:
      require_width(modules[1], self.max_answer_width, "Pretraining")
    settings = {
      "form": self.loss_form,
      "has_null": self.null_block,
      "span_weight": self.span_weight,
    }
    return shared_partial(stage_losses.pretraining, *modules, **settings)

  def num_searched(self, num_blocks: int) -> int:
    # The source is searched for, too, where it is then dropped.
    needed = self._num_retrieved + self.drop_source
    if needed > num_blocks:
      raise ValueError(
        f"num_candidates={self.num_candidates} needs {needed} blocks (the null "
        "block is none of them, and the source's, which is dropped, one), but "
        f"the corpus has {num_blocks}; lower NUM_CANDIDATES"
      )
    spare = self.num_spare if self.drop_source else 0
    return min(needed + spare, num_blocks)

  @property
  def _num_retrieved(self) -> int:
    """Number of candidates that are not the null block."""
    return self.num_candidates - self.null_block

  def candidate_rows(
    self, batch: Batch, retrieved: SearchResult, corpus: Corpus
  ) -> Int[np.ndarray, "b k"]:
    """Returns the candidates of each query but the null block, best first.

    The source and its verbatim copies are known by their hashes, in whichever
    corpus they are.
    """
    hashes = corpus.content_hashes[retrieved.rows]
    is_source = hashes == batch.array("source_hash")[:, None]
    rows = retrieved.rows
    if self.read_gold:
      blocks = corpus.gather(rows, int(corpus.lengths.max()))
      has_words = has_masked_words(protocol.mask_targets(batch), blocks)
      order = np.argsort(~has_words, axis=1, kind="stable")
      rows = np.take_along_axis(rows, order, axis=1)
      is_source = np.take_along_axis(is_source, order, axis=1)
    return np.asarray(
      without_source(
        rows, is_source & self.drop_source, num_kept=self._num_retrieved
      )
    )

  def assemble(
    self, batch: Batch, retrieved: SearchResult, context: protocol.StageContext
  ) -> protocol.Assembled:
    rows = self.candidate_rows(batch, retrieved, context.corpus)
    if self.null_block:
      rows = np.asarray(with_null(rows))
    candidates = context.gather(rows)
    masks = protocol.mask_targets(batch)
    inputs, query = context.inputs, batch.arrays["query"]
    joint = inputs.joint(query, candidates)
    made = inputs.pretraining(query, candidates, masks, joint=joint)
    if self.span_weight:
      spans = masked_spans(
        joint,
        masks,
        num_starts=context.block_length,
        max_width=self.max_answer_width,
      )
      made = made._replace(spans=spans)
    retrieved_blocks = candidates[:, int(self.null_block) :]
    return made, {"recall": masked_recall(masks, retrieved_blocks)}

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
    query, candidates = shapes.query, shapes.candidates
    joint = inputs.joint(query, candidates)
    made = inputs.pretraining(query, candidates, masks, joint=joint)
    if self.span_weight:
      spans = no_spans(joint, candidates, max_width=self.max_answer_width)
      made = made._replace(spans=spans)
    return made


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
