"""Attention as XLA compiles it, on every platform.

The backward pass (see `realm_jax/models/__init__.py`) keeps the softmax, not
also the weights after dropout, and sums over a head's few dimensions where
the softmax's own would sum over keys (Dao et al. 2022, section 3.1).
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int, UInt32

from realm_jax.models.arrays import AnyArray
from realm_jax.models.attention.inputs import AttentionInputs, Settings
from realm_jax.models.dropout import drop

# Logical axes of arrays that have the heads in a dimension of their own.
_AXES = (
  "activation_batch",
  "activation_length",
  "activation_heads",
  "activation_kv",
)


def attend(inputs: AttentionInputs, settings: Settings) -> Float[Array, "_ _"]:
  """Returns, by heads, softmax(query · key / √e + mask) · value, dropped out.

  It is the context of each query, in the shape of the queries.
  """
  rows, head_size = len(inputs.sequence), settings.head_size
  heads = inputs.query.shape[1] // head_size

  def by_heads(
    x: Float[Array, "m d"], bias: Float[Array, " d"]
  ) -> Float[Array, "_ _ _ _"]:
    x = x + bias[None, :]
    return nn.with_logical_constraint(
      x.reshape(rows, -1, heads, head_size), _AXES
    )

  query_bias, key_bias, value_bias = inputs.biases

  head = jnp.arange(heads).reshape(1, heads, 1, 1) * settings.max_positions
  context = attend_by_heads(
    HeadInputs(
      by_heads(inputs.query, query_bias)
      * jnp.asarray(head_size**-0.5, inputs.query.dtype),
      by_heads(inputs.key, key_bias),
      by_heads(inputs.value, value_bias),
      inputs.sequence,
      inputs.tokens[:, None, :, None],
      (head + inputs.position[:, None, None, :]).astype(jnp.uint32),
    ),
    settings,
  )
  context = nn.with_logical_constraint(context, _AXES)
  return context.reshape(inputs.query.shape)


class HeadInputs(NamedTuple):
  """Arrays of one layer's attention, the heads in a dimension of their own.

  Attributes:
    query: Queries of each row's first q tokens, biased and scaled by 1/√e.
    key, value: Biased keys and values of all tokens of the same rows.
    sequence: Number of the sequence to which a token belongs and attends.
    rows: Hash of each query's token, for dropout.
    columns: Number of each head's each key, for dropout.
  """

  query: Float[Array, "r q h e"]
  key: Float[Array, "r l h e"]
  value: Float[Array, "r l h e"]
  sequence: Int[AnyArray, "r l"]
  rows: UInt32[Array, "r 1 q 1"]
  columns: UInt32[Array, "#r h 1 l"]


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def attend_by_heads(
  inputs: HeadInputs, settings: Settings
) -> Float[Array, "_ _ _ _"]:
  """Returns softmax(query · key + mask), dropped out, times value."""
  return _forward(inputs, settings)[0]


class _Residuals(NamedTuple):
  query: Float[Array, "r q h e"]
  key: Float[Array, "r l h e"]
  value: Float[Array, "r l h e"]
  rows: UInt32[Array, "r 1 q 1"]
  columns: UInt32[Array, "#r h 1 l"]
  softmax: Float[Array, "r h q l"]
  context: Float[Array, "r q h e"]


def _forward(
  inputs: HeadInputs, settings: Settings
) -> tuple[Float[Array, "_ _ _ _"], _Residuals]:
  query, key, value, sequence, rows, columns = inputs
  scores = jnp.einsum(
    "rqhe,rlhe->rhql", query, key, preferred_element_type=jnp.float32
  )
  query_sequence = sequence[:, : query.shape[1]]
  attends = query_sequence[:, None, :, None] == sequence[:, None, None, :]
  scores += jnp.where(attends, 0.0, settings.mask_value)
  softmax = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
  weights = drop(softmax, rows, columns, settings.dropout_rate)
  context = jnp.einsum("rhql,rlhe->rqhe", weights, value)
  return context, _Residuals(query, key, value, rows, columns, softmax, context)


def _backward(
  settings: Settings,
  residuals: _Residuals,
  gradient: Float[Array, "r q h e"],
) -> tuple[HeadInputs]:
  query, key, value, rows, columns, softmax, context = residuals
  # In another form than forward, or the compiler would keep those weights.
  ones = jnp.ones((), softmax.dtype)
  kept = drop(ones, rows, columns, settings.dropout_rate)
  d_value = jnp.einsum("rhql,rqhe->rlhe", softmax * kept, gradient)
  d_softmax = jnp.einsum("rqhe,rlhe->rhql", gradient, value) * kept
  total = jnp.einsum(
    "rqhe,rqhe->rhq", gradient, context, preferred_element_type=jnp.float32
  )
  d_scores = softmax * (d_softmax - total[..., None].astype(softmax.dtype))
  d_query = jnp.einsum("rhql,rlhe->rqhe", d_scores, key)
  d_key = jnp.einsum("rhql,rqhe->rlhe", d_scores, query)
  # Integers have no gradients, for which custom_vjp takes None.
  integers: Any = (None,) * 3
  return (HeadInputs(d_query, d_key, d_value, *integers),)


attend_by_heads.defvjp(_forward, _backward)
