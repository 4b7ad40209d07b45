"""Attention within sequences that share rows.

The backward pass (see `realm_jax/models/__init__.py`) keeps the softmax, not
also the weights after dropout, and sums over a head's few dimensions where
the softmax's own would sum over keys (Dao et al. 2022, section 3.1).
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from realm_jax.models.dropout import drop


@functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7))
def attend(
  query: Float[Array, "r q h d"],
  key: Float[Array, "r k h d"],
  value: Float[Array, "r k h d"],
  sequence: Int[Array, "r k"],
  rows: UInt32[Array, "r 1 q 1"],
  columns: UInt32[Array, "#r h 1 k"],
  mask_value: float,
  dropout_rate: float,
) -> Float[Array, "r q h d"]:
  """Returns softmax(query · key + mask), dropped out, times value.

  Args:
    query: Queries of each row's first q tokens, already scaled by 1/√d.
    key, value: Keys and values of all tokens of the same rows.
    sequence: Number of the sequence to which a token belongs and attends.
    rows: Hash of each query's token, for dropout.
    columns: Number of each head's each key, for dropout.
    mask_value: Score added where a key belongs to another sequence.
    dropout_rate: Share of weights to drop; 0 when not training.
  """
  return _forward(
    query, key, value, sequence, rows, columns, mask_value, dropout_rate
  )[0]


_Residuals = tuple[Float[Array, "..."] | UInt32[Array, "..."], ...]


def _forward(
  query: Float[Array, "r q h d"],
  key: Float[Array, "r k h d"],
  value: Float[Array, "r k h d"],
  sequence: Int[Array, "r k"],
  rows: UInt32[Array, "r 1 q 1"],
  columns: UInt32[Array, "#r h 1 k"],
  mask_value: float,
  dropout_rate: float,
) -> tuple[Float[Array, "r q h d"], _Residuals]:
  scores = jnp.einsum(
    "rqhd,rkhd->rhqk", query, key, preferred_element_type=jnp.float32
  )
  query_sequence = sequence[:, : query.shape[1]]
  attends = query_sequence[:, None, :, None] == sequence[:, None, None, :]
  scores += jnp.where(attends, 0.0, mask_value)
  softmax = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
  weights = drop(softmax, rows, columns, dropout_rate)
  context = jnp.einsum("rhqk,rkhd->rqhd", weights, value)
  return context, (query, key, value, rows, columns, softmax, context)


def _backward(
  mask_value: float,
  dropout_rate: float,
  residuals: _Residuals,
  gradient: Float[Array, "r q h d"],
) -> tuple[Float[Array, "..."] | None, ...]:
  del mask_value
  query, key, value, rows, columns, softmax, context = residuals
  # In another form than forward, or the compiler would keep those weights.
  kept = drop(jnp.ones((), softmax.dtype), rows, columns, dropout_rate)
  d_value = jnp.einsum("rhqk,rqhd->rkhd", softmax * kept, gradient)
  d_softmax = jnp.einsum("rqhd,rkhd->rhqk", gradient, value) * kept
  total = jnp.einsum(
    "rqhd,rqhd->rhq", gradient, context, preferred_element_type=jnp.float32
  )
  d_scores = softmax * (d_softmax - total[..., None].astype(softmax.dtype))
  d_query = jnp.einsum("rhqk,rkhd->rqhd", d_scores, key)
  d_key = jnp.einsum("rhqk,rqhd->rkhd", d_scores, query)
  return d_query, d_key, d_value, None, None, None


attend.defvjp(_forward, _backward)
