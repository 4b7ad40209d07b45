"""The loss of each stage, of its modules, the parameters and a batch."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from realm_jax.models.parameters import Params
from realm_jax.models.reader import Reader, Spans
from realm_jax.models.retriever import Retriever, relevance
from realm_jax.models.sequences import Sequences
from realm_jax.objectives.inverse_cloze import inverse_cloze_loss
from realm_jax.objectives.masked_lm import marginal_masked_lm_loss
from realm_jax.objectives.open_qa import open_qa_loss, span_loss
from realm_jax.objectives.weighted import WeightedLoss
from realm_jax.training import batches

B = TypeVar("B")

# A stage's loss, of the parameters by component, the batch and the key of the
# dropout masks, which is None without dropout. A stage binds the modules that
# the functions below take first.
Loss = Callable[[Params, B, jax.Array | None], WeightedLoss]


def _apply(
  module: nn.Module,
  params: Params,
  dropout_key: jax.Array | None,
  *arguments: Any,
  **settings: Any,
) -> Any:
  """Applies a module, with dropout if there is a key."""
  rngs = None if dropout_key is None else {"dropout": dropout_key}
  return module.apply({"params": params}, *arguments, rngs=rngs, **settings)


def embed_candidates(
  retriever: Retriever,
  params: Params,
  batch: batches.PretrainingBatch,
  dropout_key: jax.Array | None,
) -> tuple[Float[Array, "b d"], Float[Array, "b k d"]]:
  """Embeds the queries of a batch and their candidates."""
  queries, blocks = _apply(
    retriever, params, dropout_key, batch.queries, batch.blocks
  )
  assert isinstance(batch.blocks, Sequences)
  # A group's candidates are among its own blocks.
  groups = len(batch.blocks.starts)
  index = batch.block_index
  candidates = jnp.take_along_axis(
    blocks.reshape(groups, -1, blocks.shape[-1]),
    jnp.asarray(index).reshape(groups, -1, 1),
    axis=1,
  )
  return queries, candidates.reshape(*index.shape, -1)


def read_masks(
  reader: Reader,
  params: Params,
  batch: batches.PretrainingBatch | batches.ReadingBatch,
  dropout_key: jax.Array | None,
) -> tuple[Float[Array, "b k m v"], Spans | None]:
  """Returns the reader's logits of the masked tokens, for each candidate.

  They come with the scores of spans, if the batch has targets for them.
  """
  inputs = batch.joint, batch.masks.positions
  if batch.spans is None:
    logits = _apply(reader, params, dropout_key, *inputs, method="masked_lm")
    return logits, None
  return _apply(
    reader,
    params,
    dropout_key,
    *inputs,
    batch.spans.body_start,
    batch.spans.body_length,
    num_starts=batch.spans.is_answer.shape[2],
    method="masked_lm_and_spans",
  )


def _with_span_loss(
  masked_lm: WeightedLoss,
  spans: Spans | None,
  targets: batches.SpanTargets | None,
  *,
  weight: float,
  block_scores: Float[Array, "b k"] | None = None,
) -> WeightedLoss:
  """Adds the loss of pointing at what is masked, `weight` for each example.

  As in open QA, a span's score includes that of its block, if there are any.
  It trains the reader alone: the retriever learns from p(y|x), as in the paper,
  and not from where the masked words are.
  """
  if spans is None or targets is None:
    return masked_lm
  scores = spans.logits
  if block_scores is not None:
    scores += jax.lax.stop_gradient(block_scores)[:, :, None, None]
  pointing = span_loss(scores, spans.is_span, targets.is_answer)
  total = masked_lm.loss.total + weight * pointing.loss.total
  return WeightedLoss(
    masked_lm.loss._replace(total=total),
    {**masked_lm.metrics, "span_accuracy": pointing.metrics["span_accuracy"]},
  )


def _split(
  dropout_key: jax.Array | None,
) -> tuple[jax.Array | None, jax.Array | None]:
  """Returns keys for the retriever and for the reader."""
  if dropout_key is None:
    return None, None
  retriever_key, reader_key = jax.random.split(dropout_key)
  return retriever_key, reader_key


def inverse_cloze(
  retriever: Retriever,
  params: Params,
  batch: batches.InverseClozeBatch,
  dropout_key: jax.Array | None = None,
) -> WeightedLoss:
  """Returns the loss of inverse cloze.

  Its negatives are all blocks of the global batch, so it cannot be split into
  micro-batches.
  """
  queries, blocks = _apply(
    retriever, params["retriever"], dropout_key, batch.queries, batch.blocks
  )
  return inverse_cloze_loss(
    queries, blocks, batch.removed, score_scale=retriever.score_scale
  )


def pretraining(
  retriever: Retriever,
  reader: Reader,
  params: Params,
  batch: batches.PretrainingBatch,
  dropout_key: jax.Array | None = None,
  *,
  form: str = "per_token",
  has_null: bool = True,
  span_weight: float = 0.0,
) -> WeightedLoss:
  """Returns REALM's loss (section 3.1).

  Queries and candidates are embedded with the current parameters. With
  `has_null`, the first candidate is the null block. A batch with `spans` adds
  `span_weight` times the loss of pointing at the masked words.
  """
  retriever_key, reader_key = _split(dropout_key)
  queries, candidates = embed_candidates(
    retriever, params["retriever"], batch, retriever_key
  )
  logits, spans = read_masks(reader, params["reader"], batch, reader_key)
  block_scores = relevance(
    queries, candidates, score_scale=retriever.score_scale
  )
  masked_lm = marginal_masked_lm_loss(
    block_scores,
    logits,
    batch.masks.token_ids,
    batch.masks.weights,
    form=form,
    has_null=has_null,
  )
  return _with_span_loss(
    masked_lm,
    spans,
    batch.spans,
    weight=span_weight,
    block_scores=block_scores,
  )


def reading(
  reader: Reader,
  params: Params,
  batch: batches.ReadingBatch,
  dropout_key: jax.Array | None = None,
  *,
  span_weight: float = 0.0,
) -> WeightedLoss:
  """Returns the masked-LM loss given one block; nothing is retrieved.

  A batch with `spans` adds `span_weight` times the loss of pointing at the
  masked words.
  """
  logits, spans = read_masks(reader, params["reader"], batch, dropout_key)
  masked_lm = marginal_masked_lm_loss(
    jnp.zeros(logits.shape[:2]),
    logits,
    batch.masks.token_ids,
    batch.masks.weights,
    has_null=False,
  )
  metrics = {"masked_accuracy": masked_lm.metrics["masked_accuracy"]}
  return _with_span_loss(
    masked_lm._replace(metrics=metrics), spans, batch.spans, weight=span_weight
  )


def read_spans(
  reader: Reader,
  params: Params,
  batch: batches.OpenQaBatch | batches.SpanSelectionBatch,
  dropout_key: jax.Array | None,
) -> Spans:
  """Returns the reader's scores of all spans of the blocks that it reads."""
  return _apply(
    reader,
    params,
    dropout_key,
    batch.joint,
    batch.body_start,
    batch.body_length,
    num_starts=batch.is_answer.shape[2],
    method="spans",
  )


def span_selection(
  reader: Reader,
  params: Params,
  batch: batches.SpanSelectionBatch,
  dropout_key: jax.Array | None = None,
) -> WeightedLoss:
  """Returns the reader's loss of open QA given one block."""
  spans = read_spans(reader, params["reader"], batch, dropout_key)
  return span_loss(spans.logits, spans.is_span, batch.is_answer)


def open_qa(
  retriever: Retriever,
  reader: Reader,
  params: Params,
  batch: batches.OpenQaBatch,
  dropout_key: jax.Array | None = None,
  *,
  hard_em: bool = False,
) -> WeightedLoss:
  """Returns ORQA's loss, over stored vectors or over scores of an index.

  With `StoredVectors` the query tower is trained against vectors that stay
  fixed. With `IndexScores` (BM25 has no vectors) a block's score is `scale`
  times the index's, and `scale` is the only parameter of the retriever.
  """
  retriever_key, reader_key = _split(dropout_key)
  tower, found = params["retriever"], batch.retrieved
  if isinstance(found, batches.IndexScores):
    scores = tower["scale"] * found.scores
  else:
    queries = _apply(
      retriever, tower, retriever_key, found.queries, method="embed_queries"
    )
    scores = relevance(
      queries, found.vectors, score_scale=retriever.score_scale
    )
  spans = read_spans(reader, params["reader"], batch, reader_key)
  return open_qa_loss(
    scores,
    batch.has_answer,
    spans.logits,
    spans.is_span,
    batch.is_answer,
    hard_em=hard_em,
  )
