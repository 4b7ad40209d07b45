"""Attention within sequences that share rows.

The backward pass is written out, so that only the softmax is kept for it, not
also what dropout left of it, and that the softmax's own sum over keys becomes
one over a head's few dimensions (Dao et al. 2022, section 3.1).
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
  columns: UInt32[Array, "r h 1 k"],
  mask_value: float,
  dropout_rate: float,
) -> Float[Array, "r q h d"]:
  """softmax(query · key + mask), dropped out, times value.

  Args:
    query: of each row's first q tokens; scaled by one over the square root
      of d already.
    key: in the same rows.
    value: in the same rows.
    sequence: which sequence of its row a token belongs to; each attends to
      its own.
    rows: for dropout, a hash of each query's token.
    columns: for dropout, the number of each head's each key.
    mask_value: added where a key belongs to another sequence.
    dropout_rate: of the weights; 0 when not training.
  """
  return _forward(
    query, key, value, sequence, rows, columns, mask_value, dropout_rate
  )[0]


def _forward(
  query, key, value, sequence, rows, columns, mask_value, dropout_rate
):
  scores = jnp.einsum(
    "rqhd,rkhd->rhqk", query, key, preferred_element_type=jnp.float32
  )
  of_query = sequence[:, : query.shape[1]]
  attends = of_query[:, None, :, None] == sequence[:, None, None, :]
  scores += jnp.where(attends, 0.0, mask_value)
  softmax = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
  weights = drop(softmax, rows, columns, dropout_rate)
  context = jnp.einsum("rhqk,rkhd->rqhd", weights, value)
  return context, (query, key, value, rows, columns, softmax, context)


def _backward(mask_value, dropout_rate, residuals, gradient):
  del mask_value
  query, key, value, rows, columns, softmax, context = residuals
  # In another form than forward, or the compiler would keep those weights.
  kept = drop(jnp.ones((), softmax.dtype), rows, columns, dropout_rate)
  of_value = jnp.einsum("rhqk,rqhd->rkhd", softmax * kept, gradient)
  of_weights = jnp.einsum("rqhd,rkhd->rhqk", gradient, value)
  of_softmax = of_weights * kept
  total = jnp.einsum(
    "rqhd,rqhd->rhq", gradient, context, preferred_element_type=jnp.float32
  )
  of_scores = softmax * (of_softmax - total[..., None].astype(softmax.dtype))
  of_query = jnp.einsum("rhqk,rkhd->rqhd", of_scores, key)
  of_key = jnp.einsum("rhqk,rqhd->rkhd", of_scores, query)
  return of_query, of_key, of_value, None, None, None


attend.defvjp(_forward, _backward)
