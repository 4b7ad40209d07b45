"""Attention in one TPU kernel, in Pallas, that never writes its scores.

No library's kernel serves: BERT drops attention's weights in training, and
neither jax's flash nor its splash attention has dropout. The kernel was never
run on a TPU, only compiled for one and interpreted, so that it has to be asked
for: `BertConfig.attention = "pallas"`.

A program handles one row and the heads that share 128 lanes: all scores of a
head, at most 512 × 512, are in the chip's vector memory at once, so that the
softmax needs no second pass (Dao et al. 2022 split longer rows).
Queries, keys and values stay as the linear layers make them, a row for each
token and the heads side by side: a head is selected by setting the other lanes
to zero, which costs a matrix unit of 128 × 128 nothing, since a contraction of
64 occupies it as long as one of 128.

Dropout is that of `realm_jax/models/dropout.py`. Its masks are computed again
in the backward pass, as the softmax is. The compiler cannot divide a kernel
over devices, so each runs it on its own rows and heads.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from realm_jax.models.attention import AXES, AttentionInputs, Settings
from realm_jax.models.dropout import dropped

# The vector memory holds the scores of a row of this many tokens.
_MAX_LENGTH = 512
_LANES = 128
# Rows of the integers that a program reads beside the vectors. The others fill
# a tile of the memory.
_SEQUENCE, _TOKEN, _POSITION, _TILE_ROWS = 0, 1, 2, 8


def fits(inputs: AttentionInputs, settings: Settings) -> bool:
  """Returns whether all tokens attend and the kernel handles the sizes.

  Several devices need a mesh in effect, over which they can be divided.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty and jax.device_count() > 1 and not _interprets():
    return False
  row_parts, lane_parts = (
    math.prod(
      mesh.shape[name]
      for name in ((part,) if isinstance(part, str) else part or ())
    )
    for part in _spec()
  )
  (rows, length), width = inputs.sequence.shape, inputs.query.shape[1]
  return (
    inputs.query.shape == inputs.key.shape
    and length <= _MAX_LENGTH
    and length % 16 == 0
    and _LANES % settings.head_size == 0
    and width % (_LANES * lane_parts) == 0
    and rows % row_parts == 0
  )


def _interprets() -> bool:
  """Whether the program being traced will run on another platform than TPUs.

  Under a mesh that is its devices', which need not be of this machine.
  """
  device = jax.sharding.get_abstract_mesh().abstract_device
  name = jax.default_backend() if device is None else device.platform
  return name != "tpu"


def _spec() -> PartitionSpec:
  """Returns the mesh axes that divide the vectors of tokens; none without."""
  if jax.sharding.get_abstract_mesh().empty:
    return PartitionSpec(None, None)
  return nn.logical_to_mesh_axes(AXES)


def attend(inputs: AttentionInputs, settings: Settings) -> Float[Array, "n d"]:
  """Returns, by heads, softmax(query · key / √e + mask) · value, dropped out.

  `fits` has to be true of the arguments.
  """
  if jax.sharding.get_abstract_mesh().empty:
    return _attend(inputs, settings)
  spec = _spec()
  of_rows, of_heads = spec

  def on_each_device(inputs: AttentionInputs) -> Float[Array, "n d"]:
    if of_heads is not None:
      # The number of the first head is part of the columns' numbers.
      heads = inputs.query.shape[1] // settings.head_size
      first = jax.lax.axis_index(of_heads) * heads * settings.max_positions
      inputs = inputs._replace(position=inputs.position + first)
    return _attend(inputs, settings)

  rows: Any = PartitionSpec(of_rows)
  vectors: Any = spec
  return jax.shard_map(
    on_each_device,
    in_specs=(AttentionInputs(vectors, vectors, vectors, rows, rows, rows),),
    out_specs=spec,
    check_vma=False,
  )(inputs)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _attend(inputs: AttentionInputs, settings: Settings) -> Float[Array, "n d"]:
  return _forward(inputs, settings)[0]


_Residuals = tuple[tuple[Float[Array, "n d"], ...], Int[Array, "r c l"]]


def _forward(
  inputs: AttentionInputs, settings: Settings
) -> tuple[Float[Array, "n d"], _Residuals]:
  tokens = jax.lax.bitcast_convert_type(inputs.tokens, jnp.int32)
  rows = jnp.stack([inputs.sequence, tokens, inputs.position], axis=1)
  rows = jnp.pad(rows, ((0, 0), (0, _TILE_ROWS - rows.shape[1]), (0, 0)))
  vectors = inputs.query, inputs.key, inputs.value
  (context,) = _call(_forward_kernel, 1, settings, vectors, rows)
  return context, ((*vectors, context), rows)


def _backward(
  settings: Settings, residuals: _Residuals, gradient: Float[Array, "n d"]
) -> tuple[AttentionInputs]:
  vectors, rows = residuals
  gradients = _call(_backward_kernel, 3, settings, (*vectors, gradient), rows)
  # Integers have no gradients, for which custom_vjp takes None.
  integers: Any = (None,) * 3
  return (AttentionInputs(*gradients, *integers),)


_attend.defvjp(_forward, _backward)


def _call(
  kernel: Callable[..., None],
  num_outputs: int,
  settings: Settings,
  vectors: tuple[Float[Array, "n d"], ...],
  rows: Int[Array, "r c l"],
) -> tuple[Float[Array, "n d"], ...]:
  """Runs a kernel, whose outputs are laid out as the vectors are."""
  num_rows, _, length = rows.shape
  like = jax.ShapeDtypeStruct(vectors[0].shape, vectors[0].dtype)
  lanes = pl.BlockSpec((length, _LANES), lambda row, lane: (row, lane))
  of_row = pl.BlockSpec(
    (None, _TILE_ROWS, length), lambda row, lane: (row, 0, 0)
  )
  return pl.pallas_call(
    functools.partial(kernel, settings),
    grid=(num_rows, like.shape[1] // _LANES),
    in_specs=[*[lanes] * len(vectors), of_row],
    out_specs=[lanes] * num_outputs,
    out_shape=[like] * num_outputs,
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=("parallel", "parallel")
    ),
    interpret=_interprets(),
    name=f"attention{kernel.__name__}",
  )(*vectors, rows)


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


def _heads(
  settings: Settings, query: Any, key: Any, rows: Any
) -> Iterator[tuple[jax.Array, jax.Array, Callable[[jax.Array], jax.Array]]]:
  """Yields a head's lanes, its softmax, and what drops its weights out."""
  sequence = rows[_SEQUENCE : _SEQUENCE + 1, :]
  attends = _column(sequence) == sequence
  mask = jnp.where(attends, 0.0, settings.mask_value)
  tokens = _column(rows[_TOKEN : _TOKEN + 1, :])
  of_program = _LANES // settings.head_size
  lane = jax.lax.broadcasted_iota(jnp.int32, (1, _LANES), 1)
  zero = jnp.zeros((), query.dtype)
  for number in range(of_program):
    lanes = lane // settings.head_size == number
    of_head = jnp.where(lanes, query[...], zero)
    scores = _product(of_head, key[...], (1, 1)) * settings.head_size**-0.5
    scores += mask
    exponentials = jnp.exp(scores - jnp.max(scores, axis=1, keepdims=True))
    softmax = exponentials / jnp.sum(exponentials, axis=1, keepdims=True)
    head = pl.program_id(1) * of_program + number
    columns = rows[_POSITION : _POSITION + 1, :] + head * settings.max_positions
    drop = functools.partial(
      dropped,
      rows=tokens.astype(jnp.uint32),
      columns=columns.astype(jnp.uint32),
      rate=settings.dropout_rate,
    )
    yield lanes, softmax, drop


def _forward_kernel(settings: Settings, *memory: Any) -> None:
  query, key, value, rows, context = memory
  total = jnp.zeros(context.shape, jnp.float32)
  for lanes, softmax, drop in _heads(settings, query, key, rows):
    weights = drop(softmax.astype(value.dtype))
    total = jnp.where(lanes, _product(weights, value[...], (1, 0)), total)
  context[...] = total.astype(context.dtype)


def _backward_kernel(settings: Settings, *memory: Any) -> None:
  """Sums over a head's dimensions, not over keys (Dao et al. 2022, 3.1)."""
  query, key, value, context, gradient, rows, *outputs = memory
  products = context[...].astype(jnp.float32) * gradient[...].astype(
    jnp.float32
  )
  zero, scale = jnp.zeros((), gradient.dtype), settings.head_size**-0.5
  totals = [jnp.zeros(query.shape, jnp.float32)] * 3
  for lanes, softmax, drop in _heads(settings, query, key, rows):
    of_head = jnp.where(lanes, gradient[...], zero)
    d_softmax = drop(_product(of_head, value[...], (1, 1)))
    total = jnp.sum(jnp.where(lanes, products, 0.0), axis=1, keepdims=True)
    d_scores = (softmax * (d_softmax - total)).astype(query.dtype)
    weights = drop(softmax.astype(value.dtype))
    of_this = (
      _product(d_scores, key[...], (1, 0)) * scale,
      _product(d_scores, query[...], (0, 0)) * scale,
      _product(weights, gradient[...], (0, 0)),
    )
    totals = [
      jnp.where(lanes, new, old)
      for new, old in zip(of_this, totals, strict=True)
    ]
  for output, total in zip(outputs, totals, strict=True):
    output[...] = total.astype(output.dtype)
