"""Masked words: their positions in queries and blocks, and the loss.

A reader that learns not only to fill in masked words, but also to point at them
in the block, needs fewer questions later, because BERT's pre-training does not
train the span head. This costs little, as the encoder runs once for both.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree

from realm_jax.corpus.store import Corpus
from realm_jax.inputs.batch import Batch
from realm_jax.models import AnyArray
from realm_jax.models.components import SpanReader
from realm_jax.objectives import masked_lm
from realm_jax.objectives.marginal import ObjectiveInputs, marginal
from realm_jax.objectives.open_qa import span_loss
from realm_jax.objectives.weighted import WeightedLoss
from realm_jax.training.stages.stage import Encoders, ExampleArrays


class MaskTargets(NamedTuple):
  """The masked tokens that are scored, and their positions in the query.

  `weights` are 1 for masks and 0 for the padding after them.
  """

  positions: Int[AnyArray, "b m"]
  token_ids: Int[AnyArray, "b m"]
  weights: Float[AnyArray, "b m"]

  @classmethod
  def of(cls, batch: Batch) -> "MaskTargets":
    """Returns the masked tokens of a task's examples."""
    names = ("mask_positions", "mask_targets", "mask_weights")
    return cls(*(batch.arrays[name] for name in names))

  @classmethod
  def none(cls, shapes: ExampleArrays) -> "MaskTargets":
    """Returns targets of the same shapes and types, all padding."""
    none = np.zeros((len(shapes.query), shapes.max_masks), np.int32)
    return cls(none, none, none.astype(np.float32))


def occurrences(
  masks: MaskTargets, tokens: Int[AnyArray, "b n l"]
) -> Bool[AnyArray, "b n l"]:
  """Returns the tokens at which the masked tokens of the query occur.

  Masked tokens occur where all of them follow each other in the same order, as
  in one salient span. Arrays are NumPy's or jax's.
  """
  xp = tokens.__array_namespace__()
  length, num_masks = tokens.shape[-1], masks.token_ids.shape[1]
  is_mask = masks.weights > 0
  following = xp.pad(tokens, ((0, 0), (0, 0), (0, num_masks - 1)))
  is_start = xp.broadcast_to(is_mask[:, :1, None], tokens.shape)
  for number in range(num_masks):
    is_equal = (
      following[..., number : number + length]
      == masks.token_ids[:, number, None, None]
    )
    is_start = is_start & (is_equal | ~is_mask[:, number, None, None])
  return is_start


def has_masked_words(
  batch: Batch, rows: Int[np.ndarray, "b n"], corpus: Corpus
) -> Bool[np.ndarray, "b n"]:
  """Returns whether each block has the masked words of its query."""
  blocks = corpus.gather(rows, int(corpus.lengths.max()))
  starts = occurrences(MaskTargets.of(batch), blocks)
  return np.asarray(np.asarray(starts).any(axis=2))


def masked_spans(
  masks: MaskTargets,
  candidates: Int[AnyArray, "b k l"],
  body_length: Int[AnyArray, "b k"],
  *,
  separator_id: int,
  max_width: int,
) -> Bool[Array, "b k l w"]:
  """Returns whether the span at each start and of each width was masked.

  Candidates are padded blocks, `[CLS] title [SEP] body [SEP]`. The reader reads
  `body_length` tokens of their bodies.
  """
  length = candidates.shape[-1]
  first = jnp.argmax(candidates == separator_id, axis=-1)[..., None] + 1
  index = jnp.arange(length)[None, None, :]
  bodies = jnp.take_along_axis(
    candidates, jnp.minimum(index + first, length - 1), axis=-1
  )
  width = jnp.sum(masks.weights > 0, axis=-1)
  last = index + width[:, None, None] - 1
  starts = occurrences(masks, bodies) & (last < body_length[..., None])
  of_width = jax.nn.one_hot(width - 1, max_width, dtype=bool)
  return jnp.asarray(starts)[..., None] & of_width[:, None, None]


def loss_given_blocks(
  encoders: Encoders,
  masks: MaskTargets,
  candidates: Int[AnyArray, "b k l"],
  inputs: PyTree,
  *,
  block_scores: Float[Array, "b k"],
  has_null: bool,
  span_weight: float,
  objective: Callable[[ObjectiveInputs], WeightedLoss] = marginal,
  has_target: bool = False,
) -> WeightedLoss:
  """Returns the loss of filling in the masked words (section 3.1).

  An objective's target comes from a reader without dropout. If the reader has
  dropout, this takes another forward pass of it.

  With a `span_weight`, the weighted loss for pointing at the masked words is
  added for each example, before the sum is divided (in the per-token form by
  the number of masks). As in open QA, a span's score includes the score of its
  block. This loss trains only the reader: as in the paper, the retriever learns
  from p(y|x), and not from the positions of masked words.
  """
  reader, spans, target_logits = encoders.components.reader, None, None
  span_reader: SpanReader | None = None
  words = masks.positions, masks.token_ids
  if span_weight:
    # Refuses another kind of reader before applying it.
    span_reader = encoders.components.span_reader
    logits, spans = encoders.apply(
      "reader",
      inputs,
      masks.positions,
      num_starts=candidates.shape[-1],
      method="masked_lm_and_spans",
    )
  else:
    logits = encoders.apply("reader", inputs, *words, method="token_logits")
  drops = "reader" in encoders.dropout_keys and reader.dropout_rate > 0
  if has_target and drops:
    frozen = encoders.frozen("reader")
    target_logits = frozen.apply(
      "reader", inputs, *words, method="token_logits"
    )
  filling = masked_lm.masked_lm_loss(
    block_scores,
    logits,
    masks.token_ids,
    masks.weights,
    objective=objective,
    target_logits=target_logits,
    has_null=has_null,
  )
  if spans is None or span_reader is None:
    return filling
  is_answer = masked_spans(
    masks,
    candidates,
    inputs.body_length,
    separator_id=span_reader.separator_id,
    max_width=span_reader.max_answer_width,
  )
  scores = spans.logits + lax.stop_gradient(block_scores)[:, :, None, None]
  pointing = span_loss(scores, spans.is_span, is_answer)
  total = filling.loss.total + span_weight * pointing.loss.total
  return WeightedLoss(
    filling.loss._replace(total=total),
    {**filling.metrics, "span_accuracy": pointing.metrics["span_accuracy"]},
  )
