"""What the devices compute for an explanation: scores and logits.

The functions are compiled by their callers, and the batches are padded. What
is summed over candidates is small, and is summed on the host.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from realm_jax.models import sequences
from realm_jax.models.parameters import Params
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever, relevance


def score_candidates(
  retriever: Retriever,
  params: Params,
  query: Int[Array, "b q"],
  candidates: Int[Array, "b k l"],
) -> Float[Array, "b k"]:
  """Returns f(x,z), both embedded with the current parameters."""
  vectors = retriever.apply({"params": params}, query, candidates)
  return relevance(*vectors, score_scale=retriever.score_scale)


def _mask_logits(
  reader: Reader,
  params: Params,
  query: Int[Array, "b q"],
  candidates: Int[Array, "b k l"],
  positions: Int[Array, "b m"],
) -> Float[Array, "b k m v"]:
  inputs = sequences.padded(reader.join(query, candidates).token_ids)
  return reader.apply({"params": params}, inputs, positions, method="masked_lm")


def mask_logits_of_first(
  reader: Reader,
  params: Params,
  query: Int[Array, "b q"],
  candidates: Int[Array, "b k l"],
  positions: Int[Array, "b m"],
) -> Float[Array, "k m v"]:
  """Returns the first query's logits of the vocabulary at each mask."""
  return _mask_logits(reader, params, query, candidates, positions)[0]


def target_log_probs(
  reader: Reader,
  params: Params,
  query: Int[Array, "b q"],
  candidates: Int[Array, "b k l"],
  positions: Int[Array, "b m"],
  targets: Int[Array, "b m"],
) -> Float[Array, "b k m"]:
  """Returns log p(y_j|z,x) of given words behind the masks."""
  logits = _mask_logits(reader, params, query, candidates, positions)
  log_probs = jax.nn.log_softmax(logits, axis=-1)
  return jnp.take_along_axis(log_probs, targets[:, None, :, None], axis=-1)[
    ..., 0
  ]


def unaided_logits(
  reader: Reader,
  params: Params,
  query: Int[Array, "b q"],
  positions: Int[Array, "b m"],
) -> Float[Array, "b m v"]:
  """Returns a masked language model's logits of `[CLS] x [SEP]` alone."""
  return reader.apply(
    {"params": params}, sequences.padded(query), positions, method="masked_lm"
  )[:, 0]


def span_logits_of_first(
  reader: Reader,
  params: Params,
  query: Int[Array, "b q"],
  candidates: Int[Array, "b k l"],
) -> Float[Array, "k l w"]:
  """Returns the first query's scores of spans, −∞ where there is no span."""
  token_ids, *bodies = reader.join(query, candidates)
  spans = reader.apply(
    {"params": params},
    sequences.padded(token_ids),
    *bodies,
    num_starts=candidates.shape[-1],
    method="spans",
  )
  return jnp.where(spans.is_span[0], spans.logits[0], -jnp.inf)
