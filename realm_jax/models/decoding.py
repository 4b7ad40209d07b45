"""Decoding with a T5: greedy and beam search, in one compiled loop.

Texts and scores are the same as from `generate` in transformers 4.40. All beams
of a decoder share the keys and values of its memory. Keys and values of the
beams' own tokens are never moved: each beam attends to its ancestors' entries.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from realm_jax.models import matmul
from realm_jax.models.parameters import Params
from realm_jax.models.sequences import PAD_ID
from realm_jax.models.t5 import (
  MASKED,
  T5,
  Memory,
  T5Config,
  T5Layer,
  View,
  position_bias,
  rms_norm,
)

EarlyStopping = bool | Literal["never"]


class Texts(NamedTuple):
  """Texts of each decoder, the best first.

  Attributes:
    token_ids: Tokens of the texts, padded, including the end token, if any.
    scores: Sum of log p of a text's tokens, divided by their number to the
      power of `length_penalty`.
  """

  token_ids: Int[Array, "n m t"]
  scores: Float[Array, "n m"]


class _State(NamedTuple):
  """State of a search with k beams, after `length` tokens.

  Attributes:
    token_ids, scores: Tokens of the beams, and the sums of their log p.
    ancestors: Beam in which each earlier token of a beam was written.
    ended: The best texts that have ended.
    is_done: Whether a decoder can find no better text.
    past: Keys and values of the tokens of all beams, by layer.
  """

  length: Int[Array, ""]
  token_ids: Int[Array, "n k t"]
  scores: Float[Array, "n k"]
  ancestors: Int[Array, "n k t"]
  ended: Texts
  is_done: Bool[Array, " n"]
  past: Any


def generate(
  model: T5,
  params: Params,
  memory: Memory,
  *,
  max_tokens: int,
  num_beams: int = 1,
  num_texts: int = 1,
  length_penalty: float | Float[Array, ""] = 1.0,
  early_stopping: EarlyStopping = False,
) -> Texts:
  """Returns the best texts of a beam search, which is greedy with one beam.

  Args:
    model, params: Model and its parameters.
    memory: Memory from `encode_memory`.
    max_tokens: Maximum number of tokens of a text, including its end.
    num_beams: Number of beams.
    num_texts: Number of texts, at most `num_beams`.
    length_penalty: Exponent p in the score Σ log p(token) / num_tokens**p.
    early_stopping: Criterion for ending a search with `num_beams` texts: True
      ends it at once, False if no text of the current length would be better,
      and "never" if no text of any length would be.
  """
  shape = count, _, _ = len(memory.is_token), num_beams, max_tokens
  next_logits, past = _decoder(model.config, params, memory, shape)
  beams, here = jnp.arange(num_beams), jnp.arange(max_tokens)[None, None]
  if num_beams == 1:
    early_stopping = True

  def penalty(length: Any) -> Float[Array, ""]:
    return jnp.asarray(length, jnp.float32) ** length_penalty

  def attainable(
    best: Float[Array, " n"], length: Int[Array, ""]
  ) -> Float[Array, " n"]:
    """Returns a bound of the scores of texts that have not ended."""
    if early_stopping is True:
      return jnp.full_like(best, -jnp.inf)
    longest: Any = length
    if early_stopping == "never":
      longest = jnp.where(jnp.asarray(length_penalty) > 0, max_tokens, length)
    return best / penalty(longest)

  def step(state: _State) -> _State:
    logits, ancestors, past = next_logits(state)
    number = min(2 * num_beams, logits.shape[-1])
    best, token = lax.top_k(logits, number)
    log_p = best - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    scores = (state.scores[..., None] + log_p).reshape(count, -1)
    scores, order = lax.top_k(scores, 2 * num_beams)
    parent, token = order // number, _choose(token.reshape(count, -1), order)
    is_end = token == model.config.end_id

    def extended(rows: Int[Array, "n k"]) -> Int[Array, "n k t"]:
      """Returns the beams' tokens with the new ones."""
      earlier = _choose(state.token_ids, _choose(parent, rows))
      return jnp.where(
        here == state.length, _choose(token, rows)[..., None], earlier
      )

    # End tokens count only if they are among the best `num_beams`.
    length = state.length + 1
    score = jnp.where(is_end, scores / penalty(length), -jnp.inf)
    first = jnp.broadcast_to(beams[None], (count, num_beams))
    ended = _best(
      state.ended, Texts(extended(first), score[:, :num_beams]), num_beams
    )
    keep = state.is_done
    ended = Texts(
      jnp.where(keep[:, None, None], state.ended.token_ids, ended.token_ids),
      jnp.where(keep[:, None], state.ended.scores, ended.scores),
    )
    worst = ended.scores[:, -1]
    is_better = worst >= attainable(scores[:, 0], length)
    rows = jnp.argsort(is_end, axis=-1, stable=True)[:, :num_beams]
    return _State(
      length,
      extended(rows),
      _choose(scores, rows),
      _choose(ancestors, _choose(parent, rows)),
      *(ended, keep | (jnp.isfinite(worst) & is_better), past),
    )

  empty = jnp.full(shape, PAD_ID, jnp.int32)
  # All beams are equal at first, so only one of them counts.
  scores = jnp.where(beams == 0, 0.0, -1e9)
  scores = jnp.broadcast_to(scores[None], (count, num_beams))
  state = lax.while_loop(
    lambda state: (state.length < max_tokens) & ~state.is_done.all(),
    step,
    _State(
      *(jnp.zeros((), jnp.int32), empty, scores, jnp.zeros_like(empty)),
      ended=Texts(empty, jnp.full_like(scores, -jnp.inf)),
      is_done=jnp.zeros(count, bool),
      past=past,
    ),
  )
  open_scores = state.scores / penalty(max_tokens)
  open_scores = jnp.where(state.is_done[:, None], -jnp.inf, open_scores)
  return _best(state.ended, Texts(state.token_ids, open_scores), num_texts)


def _decoder(
  config: T5Config,
  params: Params,
  memory: Memory,
  shape: tuple[int, int, int],
) -> tuple[Callable[[_State], tuple[jax.Array, jax.Array, Any]], Any]:
  """Prepares decoding for a number of decoders, of beams, and of tokens.

  Returns:
    A function that returns the logits [n k v] of the next tokens of a search,
    with ancestors [n k t] and with keys and values; and those of no tokens.
  """
  count, num_beams, max_tokens = shape
  layer = T5Layer(config, is_decoder=True)
  decoder, axes = params["decoder"], ("vocab", "activation_embed")
  embeddings = nn.with_logical_constraint(params["word_embeddings"], axes)
  # Operands of products are prepared once, instead of for each token.
  kernel = embeddings.T if config.tied_head else params["head"]["kernel"]
  kernel = matmul.as_operand(kernel)
  scale = config.hidden_size**-0.5 if config.tied_head else 1.0
  layers = [
    jax.tree.map(
      lambda x, i=i: matmul.as_operand(x[i]) if x.ndim > 2 else x[i],
      decoder["layers"],
    )
    for i in range(config.decoder_layers)
  ]
  memories = [
    layer.apply({"params": one}, memory, method="read") for one in layers
  ]
  if num_beams == 1:  # See `matmul`.
    memories = jax.tree.map(lambda x: x.astype(config.dtype), memories)
  # Keys are ordered by position, then by beam.
  bias = position_bias(
    config, decoder["position_embeddings"], max_tokens, bidirectional=False
  )
  bias = jnp.repeat(bias, num_beams, axis=-1)
  size = count, config.num_heads, max_tokens * num_beams, config.head_size
  no_token = jnp.zeros((count, num_beams), jnp.uint32)
  no_position = jnp.zeros((1, 1), jnp.int32)
  beams, here = jnp.arange(num_beams), jnp.arange(max_tokens)[None, None]

  def next_logits(state: _State) -> tuple[jax.Array, jax.Array, Any]:
    place = state.length
    before = jnp.where(here == place - 1, state.token_ids, 0).sum(axis=-1)
    before = jnp.where(place == 0, config.start_id, before)
    ancestors = jnp.where(here == place, beams[None, :, None], state.ancestors)
    attends = (ancestors[..., None] == beams[None, None, None]) & (
      here[..., None] <= place
    )
    mask = jnp.where(attends, 0.0, MASKED).reshape(count, 1, num_beams, -1)
    token_bias = lax.dynamic_slice_in_dim(bias, place, 1, axis=2)
    view = View(mask, no_token, no_position, token_bias)
    memory_view = View(memory.mask, no_token, no_position)
    hidden = jnp.take(embeddings, before, axis=0).astype(config.dtype)
    hidden, past = hidden.reshape(-1, config.hidden_size), []
    for of_layer, keys, earlier in zip(
      layers, memories, state.past, strict=True
    ):
      hidden, cache = layer.apply(
        {"params": of_layer},
        *(hidden, view, keys, memory_view, (earlier, place * num_beams)),
      )
      past.append(cache)
    hidden = rms_norm(config).apply({"params": decoder["norm"]}, hidden)
    last = (((1,), (0,)), ((), ()))
    logits = matmul.dot_general(
      hidden * scale, kernel.astype(hidden.dtype), last
    )
    logits = logits.astype(jnp.float32)
    return logits.reshape(count, num_beams, -1), ancestors, past

  nothing = [
    tuple(jnp.zeros(size, part.dtype) for part in keys) for keys in memories
  ]
  return next_logits, nothing


def _choose(x: Array, rows: Int[Array, "n k"]) -> Array:
  """Selects rows of each decoder's array."""
  return jax.vmap(lambda array, index: array[index])(x, rows)


def _best(ended: Texts, others: Texts, number: int) -> Texts:
  """Returns the best texts of both."""
  scores = jnp.concatenate([ended.scores, others.scores], axis=1)
  token_ids = jnp.concatenate([ended.token_ids, others.token_ids], axis=1)
  scores, rows = lax.top_k(scores, number)
  return Texts(_choose(token_ids, rows), scores)
