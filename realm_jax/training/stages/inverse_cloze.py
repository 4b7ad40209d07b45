"""Inverse cloze: find the block that a sentence was taken from."""

import dataclasses

import jax
import numpy as np
from jaxtyping import Int

from realm_jax.corpus.store import Corpus
from realm_jax.generations.follow.loading import Generation
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batches import Batch
from realm_jax.models.parameters import Params
from realm_jax.training import step
from realm_jax.training.batches import InverseClozeBatch
from realm_jax.training.stages.model_inputs import ModelInputs, Models
from realm_jax.training.stages.protocol import Assembled, Lengths, tokens


@dataclasses.dataclass(frozen=True)
class InverseCloze:
  """A sentence finds its block among the blocks of the global batch."""

  needs_index = False
  current_queries = True
  num_candidates = 1

  def init(self, models: Models, lengths: Lengths, key: jax.Array) -> Params:
    query = tokens(1, lengths["query"])
    block = tokens(1, lengths["block"])
    return {"retriever": models.retriever.init(key, query, block)["params"]}

  def loss(self, models: Models) -> step.Loss[InverseClozeBatch]:
    return step.inverse_cloze(models.retriever)

  def num_searched(self, num_blocks: int) -> int:
    return 0

  def assemble(
    self,
    batch: Batch,
    retrieved: SearchResult,
    *,
    inputs: ModelInputs,
    corpus: Corpus,
    generation: Generation | None,
    block_length: int,
  ) -> Assembled:
    arrays = batch.arrays
    made = InverseClozeBatch(
      queries=inputs.queries(arrays["query"]),
      blocks=inputs.blocks(arrays["block"]),
      removed=arrays["removed"],
    )
    return Assembled(made, {})

  def example(
    self,
    query: Int[np.ndarray, "b q"],
    candidates: Int[np.ndarray, "b k l"],
    *,
    inputs: ModelInputs,
    num_searched: int,
    max_masks: int,
  ) -> InverseClozeBatch:
    return InverseClozeBatch(
      queries=inputs.queries(query),
      blocks=inputs.blocks(candidates[:, 0]),
      removed=np.zeros(len(query), bool),
    )
