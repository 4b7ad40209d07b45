"""Span selection: a reader learns to point before it sees any question."""

import dataclasses

import numpy as np

from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batches import Batch
from realm_jax.partitioning.sharding import shared_partial
from realm_jax.settings import PositiveInt, require_valid
from realm_jax.text.answer_spans import find_token_spans
from realm_jax.training import stage_losses
from realm_jax.training.batches import SpanSelectionBatch
from realm_jax.training.stages import protocol
from realm_jax.training.stages.model_inputs import ModelInputs, Models
from realm_jax.training.stages.span_targets import require_width


@dataclasses.dataclass(frozen=True)
class SpanSelection(protocol.Stage):
  """A sentence that lacks some words is read beside a text that has them.

  The examples are those of the task `recurring_spans` (Ram et al. 2021, arXiv
  2101.00438): query and block come from the same passage, and the answer is
  what the [MASK] of the query stands for. Every passage is an example, so that
  the span head, which no published BERT has, needs fewer questions later. The
  retriever takes no part.

  Attributes:
    max_answer_width: Width of the widest answer, in tokens, as in the reader.
  """

  max_answer_width: PositiveInt = 10
  components = ("reader",)

  def __post_init__(self) -> None:
    require_valid(self)

  def loss(self, models: Models) -> stage_losses.Loss[SpanSelectionBatch]:
    reader = models.require_reader()
    require_width(reader, self.max_answer_width, "SpanSelection")
    return shared_partial(stage_losses.span_selection, reader)

  def assemble(
    self, batch: Batch, retrieved: SearchResult, context: protocol.StageContext
  ) -> protocol.Assembled:
    blocks = batch.arrays["block"]
    joint = context.inputs.joint(batch.arrays["query"], blocks[:, None])
    is_answer = self._no_answers(*blocks.shape)
    separator = context.corpus.vocabulary.sep_id
    for row, block in enumerate(blocks):
      # `[CLS] title [SEP] body [SEP]`
      first, last = np.flatnonzero(block == separator)[[0, -1]]
      body = block[first + 1 : last]
      spans = find_token_spans(
        body, np.array([0, len(body)]), batch.answer_tokens[row]
      )
      is_answer[row, 0, spans.start, spans.width - 1] = True
    return SpanSelectionBatch(*joint, is_answer), {}

  def example(
    self, shapes: protocol.ExampleArrays, inputs: ModelInputs
  ) -> SpanSelectionBatch:
    joint = inputs.joint(shapes.query, shapes.candidates)
    batch, _, length = shapes.candidates.shape
    return SpanSelectionBatch(*joint, self._no_answers(batch, length))

  def _no_answers(self, batch: int, length: int) -> np.ndarray:
    return np.zeros((batch, 1, length, self.max_answer_width), bool)
