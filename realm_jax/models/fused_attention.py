"""Attention in one TPU kernel, which never writes its scores to memory.

A program of the kernel handles one row and the heads that share 128 lanes: all
scores of a head, at most 512 × 512, are in the chip's vector memory at once, so
that the softmax needs no second pass (Dao et al. 2022 split longer rows).
Queries, keys and values stay as the linear layers make them, a row for each
token and the heads side by side: a head is selected by setting the other lanes
to zero, which costs a matrix unit of 128 × 128 nothing, since a contraction of
64 occupies it as long as one of 128.

The biases of the linear layers are added in the kernel, and their gradients
summed there: outside of it, each sum would read all gradients once more.

Dropout is that of `realm_jax/models/dropout.py`. Its masks are computed again
in the backward pass, as the softmax is.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int, UInt32

from realm_jax.models.arrays import AnyArray
from realm_jax.models.dropout import is_kept
from realm_jax.models.platform import platform

LANES = 128
# The vector memory holds the scores of a row of this many tokens.
_MAX_LENGTH = 512
# Rows of the integers that a program reads beside the vectors. The others fill
# a tile of the memory.
_SEQUENCE, _TOKEN, _POSITION = 0, 1, 2
# Rows of the biases and their gradients.
_QUERY, _KEY, _VALUE = 0, 1, 2
_TILE_ROWS = 8
_AXES = ("activation_batch", "activation_heads")


class Settings(NamedTuple):
  """What the kernel is compiled for.

  Attributes:
    head_size: Size of a head, a divisor of 128.
    max_positions: Number of positions of the model; column numbers of dropout
      are `head · max_positions + position`.
    mask_value: Score added where a key belongs to another sequence.
    dropout_rate: Share of weights to drop; 0 when not training.
  """

  head_size: int
  max_positions: int
  mask_value: float
  dropout_rate: float


def fits(*, rows: int, length: int, width: int, head_size: int) -> bool:
  """Returns whether the kernel handles rows of a length and heads of a size.

  Several devices need a mesh in effect, over which they can be divided.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty and jax.device_count() > 1 and platform() == "tpu":
    return False
  row_parts, lane_parts = (
    math.prod(mesh.shape[name] for name in _names(part)) for part in _spec()
  )
  return (
    length <= _MAX_LENGTH
    and length % 16 == 0
    and LANES % head_size == 0
    and width % (LANES * lane_parts) == 0
    and rows % row_parts == 0
  )


def _spec() -> PartitionSpec:
  """Returns the mesh axes that divide the vectors of tokens."""
  return nn.logical_to_mesh_axes(_AXES)


def _names(part: str | tuple[str, ...] | None) -> tuple[str, ...]:
  if part is None:
    return ()
  return (part,) if isinstance(part, str) else part


@functools.partial(jax.custom_vjp, nondiff_argnums=(7,))
def attend(
  query: Float[Array, "n d"],
  key: Float[Array, "n d"],
  value: Float[Array, "n d"],
  biases: Float[Array, "3 d"],
  sequence: Int[AnyArray, "r l"],
  tokens: UInt32[Array, "r l"],
  position: Int[AnyArray, "r l"],
  settings: Settings,
) -> Float[Array, "n d"]:
  """Returns, by heads, softmax(query · key / √e + mask) · value, dropped out.

  Args:
    query, key, value: Those of the n = r · l tokens, before biases are added.
    biases: Biases of the three, in this order.
    sequence: Number of the sequence to which a token belongs and attends.
    tokens: Hash of each token, for dropout.
    position: Position of each token in its sequence.
    settings: What the kernel is compiled for.
  """
  inputs = query, key, value, biases
  return _forward(*inputs, sequence, tokens, position, settings)[0]


_Residuals = tuple[Float[Array, "..."] | Int[Array, "..."], ...]


def _forward(
  query: Float[Array, "n d"],
  key: Float[Array, "n d"],
  value: Float[Array, "n d"],
  biases: Float[Array, "3 d"],
  sequence: Int[AnyArray, "r l"],
  tokens: UInt32[Array, "r l"],
  position: Int[AnyArray, "r l"],
  settings: Settings,
) -> tuple[Float[Array, "n d"], _Residuals]:
  unsigned = jax.lax.bitcast_convert_type(tokens, jnp.int32)
  rows = jnp.stack([sequence, unsigned, position], axis=1)
  inputs = query, key, value
  (context,) = _on_each_device(
    _forward_kernel, inputs, biases, rows, settings, 1
  )
  return context, (*inputs, context, biases, rows)


def _backward(
  settings: Settings, residuals: _Residuals, gradient: Float[Array, "n d"]
) -> tuple[Float[Array, "n d"] | None, ...]:
  *inputs, biases, rows = residuals
  *gradients, of_biases = _on_each_device(
    _backward_kernel, (*inputs, gradient), biases, rows, settings, 3
  )
  of_biases = jnp.sum(of_biases[:, : len(biases)], axis=0)
  return *gradients, of_biases.astype(biases.dtype), None, None, None


attend.defvjp(_forward, _backward)


def _on_each_device(
  kernel: Any,
  inputs: tuple[Float[Array, "n d"], ...],
  biases: Float[Array, "3 d"],
  rows: Int[Array, "r c l"],
  settings: Settings,
  num_outputs: int,
) -> tuple[Float[Array, "..."], ...]:
  """Runs a kernel on each device's rows and heads; the compiler cannot.

  With several outputs, the last one has each row's gradients of the biases.
  """
  call = functools.partial(
    _call, kernel, settings=settings, num_outputs=num_outputs
  )
  if jax.sharding.get_abstract_mesh().empty:
    return call(inputs, biases, rows, 0)
  spec = _spec()
  heads_axis = spec[1]

  def local(
    inputs: tuple[Float[Array, "n d"], ...],
    biases: Float[Array, "3 d"],
    rows: Int[Array, "r c l"],
  ) -> tuple[Float[Array, "..."], ...]:
    first_head = 0
    if heads_axis is not None:
      num_heads = inputs[0].shape[1] // settings.head_size
      first_head = jax.lax.axis_index(heads_axis) * num_heads
    return call(inputs, biases, rows, first_head)

  out_specs = (spec,) * num_outputs
  if num_outputs > 1:
    out_specs += (PartitionSpec(spec[0], None, heads_axis),)
  return jax.shard_map(
    local,
    in_specs=(
      (spec,) * len(inputs),
      PartitionSpec(None, heads_axis),
      PartitionSpec(spec[0]),
    ),
    out_specs=out_specs,
    check_vma=False,
  )(inputs, biases, rows)


def _call(
  kernel: Any,
  inputs: tuple[Float[Array, "n d"], ...],
  biases: Float[Array, "3 d"],
  rows: Int[Array, "r c l"],
  first_head: jax.Array | int,
  *,
  settings: Settings,
  num_outputs: int,
) -> tuple[Float[Array, "..."], ...]:
  num_rows, _, length = rows.shape
  like = inputs[0]
  # The number of the first head is part of the columns' numbers.
  rows = rows.at[:, _POSITION].add(first_head * settings.max_positions)
  rows = jnp.pad(rows, ((0, 0), (0, _TILE_ROWS - rows.shape[1]), (0, 0)))
  biases = jnp.pad(biases, ((0, _TILE_ROWS - len(biases)), (0, 0)))
  outputs = [jax.ShapeDtypeStruct(like.shape, like.dtype)] * num_outputs
  lanes = pl.BlockSpec((length, LANES), lambda row, lane: (row, lane))
  of_row = pl.BlockSpec(
    (None, _TILE_ROWS, length), lambda row, lane: (row, 0, 0)
  )
  of_lanes = pl.BlockSpec((_TILE_ROWS, LANES), lambda row, lane: (0, lane))
  out_specs = [lanes] * num_outputs
  if num_outputs > 1:
    shape = (num_rows, _TILE_ROWS, like.shape[1])
    outputs.append(jax.ShapeDtypeStruct(shape, jnp.float32))
    out_specs.append(
      pl.BlockSpec((None, _TILE_ROWS, LANES), lambda row, lane: (row, 0, lane))
    )
  return pl.pallas_call(
    functools.partial(kernel, settings),
    grid=(num_rows, like.shape[1] // LANES),
    in_specs=[*[lanes] * len(inputs), of_lanes, of_row],
    out_specs=out_specs,
    out_shape=outputs,
    scratch_shapes=[
      pltpu.VMEM((length, length), jnp.float32),
      pltpu.VMEM((length, LANES), jnp.int32),
    ],
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=("parallel", "arbitrary")
    ),
    interpret=platform() != "tpu",
  )(*inputs, biases, rows)


def _product(
  a: Float[Array, "a b"], b: Float[Array, "c d"], over: tuple[int, int]
) -> Float[Array, "e f"]:
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
  columns = rows[_POSITION : _POSITION + 1, :] + head * settings.max_positions
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


def _forward_kernel(
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


def _backward_kernel(
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
  """Differentiates as `realm_jax/models/attention.py` does."""
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
  empty = jnp.zeros((_TILE_ROWS - len(sums), LANES), jnp.float32)
  d_biases[...] = jnp.concatenate([*sums, empty], axis=0)
