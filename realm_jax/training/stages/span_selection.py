"""Span selection: a reader learns to point before it sees any question."""

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batch import Batch
from realm_jax.models import AnyArray
from realm_jax.objectives.open_qa import span_loss
from realm_jax.objectives.weighted import WeightedLoss
from realm_jax.text.answer_spans import find_token_spans
from realm_jax.training.encoder_rows import EncoderRows
from realm_jax.training.stages import masked_words
from realm_jax.training.stages import stage as stages


class SpanSelectionBatch(NamedTuple):
  """Sentences that lack words, each with a text that has them.

  Attributes:
    blocks: The text of each sentence, as a block.
    is_answer: Whether the span of a start and a width is what is missing.
  """

  query: Int[AnyArray, "b q"]
  blocks: Int[AnyArray, "b 1 l"]
  is_answer: Bool[AnyArray, "b 1 l w"]


@dataclasses.dataclass(frozen=True)
class SpanSelection(stages.Stage):
  """A sentence that lacks some words is read beside a text that has them.

  The examples are those of the task `recurring_spans` (Ram et al. 2021, arXiv
  2101.00438): query and block come from the same passage, and the answer is
  what the [MASK] of the query stands for. Every passage is an example, so that
  the span head, which no published BERT has, needs fewer questions later. The
  retriever takes no part.
  """

  components = ("reader",)

  def assemble(
    self, batch: Batch, retrieved: SearchResult, context: stages.StageContext
  ) -> stages.Assembled:
    blocks = batch.arrays["block"]
    width = context.max_answer_width
    is_answer = _no_answers(len(blocks), blocks.shape[1], width)
    separator = context.corpus.vocabulary.sep_id
    for row, block in enumerate(blocks):
      # `[CLS] title [SEP] body [SEP]`
      first, last = np.flatnonzero(block == separator)[[0, -1]]
      body = block[first + 1 : last]
      spans = find_token_spans(
        body, np.array([0, len(body)]), batch.answer_tokens[row]
      )
      is_answer[row, 0, spans.start, spans.width - 1] = True
    query = batch.arrays["query"]
    return SpanSelectionBatch(query, blocks[:, None], is_answer), {}

  def example(self, shapes: stages.ExampleArrays) -> SpanSelectionBatch:
    batch, _, length = shapes.candidates.shape
    is_answer = _no_answers(batch, length, shapes.max_answer_width)
    return SpanSelectionBatch(shapes.query, shapes.candidates, is_answer)

  def loss(
    self,
    encoders: stages.Encoders,
    batch: SpanSelectionBatch,
    rows: EncoderRows,
  ) -> WeightedLoss:
    """Returns the reader's loss of open QA given one block."""
    spans = masked_words.read_spans(encoders, batch.blocks, rows)
    return span_loss(spans.logits, spans.is_span, batch.is_answer)


def _no_answers(batch: int, length: int, width: int) -> np.ndarray:
  return np.zeros((batch, 1, length, width), bool)
