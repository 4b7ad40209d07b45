"""What a program of the attention kernel does, in Pallas for TPUs.

A program handles one row and the heads that share 128 lanes: all scores of a
head, at most 512 × 512, are in the chip's vector memory at once, so that the
softmax needs no second pass (Dao et al. 2022 split longer rows).
Queries, keys and values stay as the linear layers make them, a row for each
token and the heads side by side: a head is selected by setting the other lanes
to zero, which costs a matrix unit of 128 × 128 nothing, since a contraction of
64 occupies it as long as one of 128.

The biases of the linear layers are added in the kernel, and their gradients
summed there: outside of it, each sum would read all gradients once more.

Dropout is that of `realm_jax/models/dropout.py`. Its masks are computed again
in the backward pass, as the softmax is.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float, Int

from realm_jax.models.attention.inputs import Settings
from realm_jax.models.dropout import is_kept

LANES = 128
# Rows of the integers that a program reads beside the vectors. The others fill
# a tile of the memory.
_SEQUENCE, _TOKEN, POSITION = 0, 1, 2
# Rows of the biases and their gradients.
_QUERY, _KEY, _VALUE = 0, 1, 2
TILE_ROWS = 8


def _product(
  a: Float[Array, "a b"], b: Float[Array, "c d"], over: tuple[int, int]
) -> Float[Array, "_ _"]:
  """Returns the product of two matrices, summed over an axis of each."""
  return jax.lax.dot_general(
    a,
    b,
    (((over[0],), (over[1],)), ((), ())),
    preferred_element_type=jnp.float32,
  )


def _column(row: Int[Array, "1 l"]) -> Int[Array, "l 1"]:
  """Returns a row as a column: the sums along a diagonal matrix's rows."""
  square = (row.shape[1], row.shape[1])
  index = jax.lax.broadcasted_iota(jnp.int32, square, 0)
  other = jax.lax.broadcasted_iota(jnp.int32, square, 1)
  diagonal = jnp.where(index == other, jnp.broadcast_to(row, square), 0)
  return jnp.sum(diagonal, axis=1, keepdims=True)


def _prepare_row(settings: Settings, rows: Any, mask: Any, tokens: Any) -> None:
  """Fills what all heads of a row share, at the first of them."""

  @pl.when(pl.program_id(1) == 0)
  def _() -> None:
    sequence = rows[_SEQUENCE : _SEQUENCE + 1, :]
    attends = _column(sequence) == sequence
    mask[...] = jnp.where(attends, 0.0, settings.mask_value)
    if settings.dropout_rate:
      column = _column(rows[_TOKEN : _TOKEN + 1, :])
      tokens[...] = jnp.broadcast_to(column, tokens.shape)


class _Head(NamedTuple):
  """One head of a row, within a program.

  Attributes:
    lanes: Whether a lane belongs to the head.
    softmax: Weights before dropout.
    is_kept: Whether dropout keeps a weight; None without dropout.
  """

  lanes: jax.Array
  softmax: jax.Array
  is_kept: jax.Array | None


def _head(
  settings: Settings,
  number: int,
  query: Float[Array, "l lanes"],
  key: Float[Array, "l lanes"],
  rows: Any,
  mask: Any,
  tokens: Any,
) -> _Head:
  """Computes the softmax of a program's head."""
  lane = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
  lanes = lane // settings.head_size == number
  zero = jnp.zeros((), query.dtype)
  scores = _product(jnp.where(lanes, query, zero), key, (1, 1)) + mask[...]
  exponentials = jnp.exp(scores - jnp.max(scores, axis=1, keepdims=True))
  softmax = exponentials / jnp.sum(exponentials, axis=1, keepdims=True)
  if not settings.dropout_rate:
    return _Head(lanes, softmax, None)
  head = pl.program_id(1) * (LANES // settings.head_size) + number
  columns = rows[POSITION : POSITION + 1, :] + head * settings.max_positions
  kept = is_kept(
    tokens[:, :1].astype(jnp.uint32),
    columns.astype(jnp.uint32),
    settings.dropout_rate,
  )
  return _Head(lanes, softmax, kept)


def _dropped(
  settings: Settings, head: _Head, x: Float[Array, "l k"]
) -> Float[Array, "l k"]:
  if head.is_kept is None:
    return x
  scale = jnp.asarray(1.0 / (1.0 - settings.dropout_rate), x.dtype)
  return jnp.where(head.is_kept, x * scale, jnp.zeros((), x.dtype))


class _Vectors(NamedTuple):
  """Queries, keys and values of a program, with their biases."""

  query: jax.Array
  key: jax.Array
  value: jax.Array


def _vectors(
  settings: Settings, query: Any, key: Any, value: Any, biases: Any
) -> _Vectors:
  """Adds the biases; queries are scaled by 1/√head_size."""
  scale = jnp.asarray(settings.head_size**-0.5, query.dtype)
  return _Vectors(
    (query[...] + biases[_QUERY : _QUERY + 1, :]) * scale,
    key[...] + biases[_KEY : _KEY + 1, :],
    value[...] + biases[_VALUE : _VALUE + 1, :],
  )


def forward_kernel(
  settings: Settings,
  query: Any,
  key: Any,
  value: Any,
  biases: Any,
  rows: Any,
  context: Any,
  mask: Any,
  tokens: Any,
) -> None:
  _prepare_row(settings, rows, mask, tokens)
  vectors = _vectors(settings, query, key, value, biases)
  total = jnp.zeros(context.shape, jnp.float32)
  for number in range(LANES // settings.head_size):
    head = _head(
      settings, number, vectors.query, vectors.key, rows, mask, tokens
    )
    weights = _dropped(settings, head, head.softmax.astype(value.dtype))
    product = _product(weights, vectors.value, (1, 0))
    total = jnp.where(head.lanes, product, total)
  context[...] = total.astype(context.dtype)


def backward_kernel(
  settings: Settings,
  query: Any,
  key: Any,
  value: Any,
  context: Any,
  gradient: Any,
  biases: Any,
  rows: Any,
  d_query: Any,
  d_key: Any,
  d_value: Any,
  d_biases: Any,
  mask: Any,
  tokens: Any,
) -> None:
  """Differentiates as `realm_jax/models/attention/plain.py` does."""
  _prepare_row(settings, rows, mask, tokens)
  vectors = _vectors(settings, query, key, value, biases)
  products = context[...].astype(jnp.float32) * gradient[...].astype(
    jnp.float32
  )
  zero = jnp.zeros((), gradient.dtype)
  totals = [jnp.zeros(query.shape, jnp.float32)] * 3
  for number in range(LANES // settings.head_size):
    head = _head(
      settings, number, vectors.query, vectors.key, rows, mask, tokens
    )
    of_head = jnp.where(head.lanes, gradient[...], zero)
    weights = _dropped(settings, head, head.softmax.astype(value.dtype))
    d_weights = _product(of_head, vectors.value, (1, 1))
    d_softmax = _dropped(settings, head, d_weights)
    total = jnp.sum(jnp.where(head.lanes, products, 0.0), axis=1, keepdims=True)
    d_scores = (head.softmax * (d_softmax - total)).astype(query.dtype)
    of_this = (
      _product(d_scores, vectors.key, (1, 0)) * settings.head_size**-0.5,
      _product(d_scores, vectors.query, (0, 0)),
      _product(weights, gradient[...], (0, 0)),
    )
    totals = [
      jnp.where(head.lanes, new, old)
      for new, old in zip(of_this, totals, strict=True)
    ]
  for output, total in zip((d_query, d_key, d_value), totals, strict=True):
    output[...] = total.astype(output.dtype)
  sums = [jnp.sum(total, axis=0, keepdims=True) for total in totals]
  empty = jnp.zeros((TILE_ROWS - len(sums), LANES), jnp.float32)
  d_biases[...] = jnp.concatenate([*sums, empty], axis=0)
