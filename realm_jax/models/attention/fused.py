"""Attention in one TPU kernel, which never writes its scores to memory.

The compiler cannot divide a kernel over devices, so each runs it on its own
rows and heads. On other platforms the kernel is interpreted, for tests.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from realm_jax.models.attention.inputs import AXES, AttentionInputs, Settings
from realm_jax.models.attention.kernel import (
  LANES,
  POSITION,
  TILE_ROWS,
  backward_kernel,
  forward_kernel,
)
from realm_jax.models.attention.platform import platform

# The vector memory holds the scores of a row of this many tokens.
_MAX_LENGTH = 512


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
  """Returns the mesh axes that divide the vectors of tokens; none without."""
  if jax.sharding.get_abstract_mesh().empty:
    return PartitionSpec(None, None)
  return nn.logical_to_mesh_axes(AXES)


def _names(part: str | tuple[str, ...] | None) -> tuple[str, ...]:
  if part is None:
    return ()
  return (part,) if isinstance(part, str) else part


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def attend(inputs: AttentionInputs, settings: Settings) -> Float[Array, "_ _"]:
  """Returns, by heads, softmax(query · key / √e + mask) · value, dropped out.

  All tokens attend, and `fits` is true of the sizes.
  """
  return _forward(inputs, settings)[0]


class _Residuals(NamedTuple):
  vectors: tuple[Float[Array, "n d"], ...]
  biases: Float[Array, "3 d"]
  rows: Int[Array, "r c l"]


def _forward(
  inputs: AttentionInputs, settings: Settings
) -> tuple[Float[Array, "_ _"], _Residuals]:
  tokens = jax.lax.bitcast_convert_type(inputs.tokens, jnp.int32)
  rows = jnp.stack([inputs.sequence, tokens, inputs.position], axis=1)
  vectors = inputs.query, inputs.key, inputs.value
  (context,) = _on_each_device(_FORWARD, vectors, inputs.biases, rows, settings)
  return context, _Residuals((*vectors, context), inputs.biases, rows)


def _backward(
  settings: Settings, residuals: _Residuals, gradient: Float[Array, "n d"]
) -> tuple[AttentionInputs]:
  vectors, biases, rows = residuals
  d_query, d_key, d_value, of_rows = _on_each_device(
    _BACKWARD, (*vectors, gradient), biases, rows, settings
  )
  d_biases = jnp.sum(of_rows[:, : len(biases)], axis=0).astype(biases.dtype)
  # Integers have no gradients, for which custom_vjp takes None.
  integers: Any = (None,) * 3
  return (AttentionInputs(d_query, d_key, d_value, d_biases, *integers),)


attend.defvjp(_forward, _backward)


class _Kernel(NamedTuple):
  """One direction of the computation.

  Attributes:
    name: Name by which profiles and precompilation list it.
    body: What a program of the kernel does.
    num_outputs: Number of its outputs that are laid out as queries are. With
      several, another one has each row's gradients of the biases.
  """

  name: str
  body: Callable[..., None]
  num_outputs: int


_FORWARD = _Kernel("attention_forward", forward_kernel, 1)
_BACKWARD = _Kernel("attention_backward", backward_kernel, 3)


def _on_each_device(
  kernel: _Kernel,
  vectors: tuple[Float[Array, "n d"], ...],
  biases: Float[Array, "3 d"],
  rows: Int[Array, "r c l"],
  settings: Settings,
) -> tuple[Float[Array, "..."], ...]:
  """Runs a kernel on each device's rows and heads."""
  call = functools.partial(_call, kernel, settings=settings)
  if jax.sharding.get_abstract_mesh().empty:
    return call(vectors, biases, rows, 0)
  spec = _spec()
  heads_axis = spec[1]

  def local(
    vectors: tuple[Float[Array, "n d"], ...],
    biases: Float[Array, "3 d"],
    rows: Int[Array, "r c l"],
  ) -> tuple[Float[Array, "..."], ...]:
    first_head = 0
    if heads_axis is not None:
      num_heads = vectors[0].shape[1] // settings.head_size
      first_head = jax.lax.axis_index(heads_axis) * num_heads
    return call(vectors, biases, rows, first_head)

  out_specs = (spec,) * kernel.num_outputs
  if kernel.num_outputs > 1:
    out_specs += (PartitionSpec(spec[0], None, heads_axis),)
  return jax.shard_map(
    local,
    in_specs=(
      (spec,) * len(vectors),
      PartitionSpec(None, heads_axis),
      PartitionSpec(spec[0]),
    ),
    out_specs=out_specs,
    check_vma=False,
  )(vectors, biases, rows)


def _call(
  kernel: _Kernel,
  vectors: tuple[Float[Array, "n d"], ...],
  biases: Float[Array, "3 d"],
  rows: Int[Array, "r c l"],
  first_head: jax.Array | int,
  *,
  settings: Settings,
) -> tuple[Float[Array, "..."], ...]:
  """Runs a kernel on the rows and heads of this device."""
  num_rows, _, length = rows.shape
  like = vectors[0]
  # The number of the first head is part of the columns' numbers.
  rows = rows.at[:, POSITION].add(first_head * settings.max_positions)
  rows = jnp.pad(rows, ((0, 0), (0, TILE_ROWS - rows.shape[1]), (0, 0)))
  biases = jnp.pad(biases, ((0, TILE_ROWS - len(biases)), (0, 0)))
  outputs = [jax.ShapeDtypeStruct(like.shape, like.dtype)] * kernel.num_outputs
  lanes = pl.BlockSpec((length, LANES), lambda row, lane: (row, lane))
  of_row = pl.BlockSpec(
    (None, TILE_ROWS, length), lambda row, lane: (row, 0, 0)
  )
  of_lanes = pl.BlockSpec((TILE_ROWS, LANES), lambda row, lane: (0, lane))
  out_specs = [lanes] * kernel.num_outputs
  if kernel.num_outputs > 1:
    shape = (num_rows, TILE_ROWS, like.shape[1])
    outputs.append(jax.ShapeDtypeStruct(shape, jnp.float32))
    out_specs.append(
      pl.BlockSpec((None, TILE_ROWS, LANES), lambda row, lane: (row, 0, lane))
    )
  return pl.pallas_call(
    functools.partial(kernel.body, settings),
    grid=(num_rows, like.shape[1] // LANES),
    in_specs=[*[lanes] * len(vectors), of_lanes, of_row],
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
    name=kernel.name,
  )(*vectors, biases, rows)
