"""Self-attention within sequences that share rows.

XLA compiles it on every platform, and on GPUs it may be cuDNN's kernel.
`realm_jax/models/tpu_attention.py` is a kernel for TPUs.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int, UInt32

from realm_jax.models.arrays import AnyArray
from realm_jax.models.dropout import drop

# Logical axes of queries, keys, values and of the result.
AXES = ("activation_batch", "activation_heads")
# Those of arrays that have the heads in a dimension of their own.
_AXES_BY_HEAD = (
  "activation_batch",
  "activation_length",
  "activation_heads",
  "activation_kv",
)


class AttentionInputs(NamedTuple):
  """Arrays of one layer's attention, with n = r · l tokens in r rows.

  Only the first q tokens of each row may attend, m = r · q of all.

  Attributes:
    query: Queries of the tokens that attend, with the heads side by side.
    key, value: Keys and values of all tokens, laid out alike.
    sequence: Number of the sequence to which a token belongs and attends.
    tokens: Hash of each token that attends, for dropout.
    position: Position of each token in its sequence.
  """

  query: Float[Array, "m d"]
  key: Float[Array, "n d"]
  value: Float[Array, "n d"]
  sequence: Int[AnyArray, "r l"]
  tokens: UInt32[Array, "r q"]
  position: Int[AnyArray, "r l"]


@dataclasses.dataclass(frozen=True)
class Settings:
  """What attention is compiled for.

  Attributes:
    head_size: Size of a head.
    max_positions: Number of positions of the model; column numbers of dropout
      are `head · max_positions + position`.
    mask_value: Score added where a key belongs to another sequence.
    dropout_rate: Share of weights to drop; 0 when not training.
  """

  head_size: int
  max_positions: int
  mask_value: float
  dropout_rate: float


def attend(
  inputs: AttentionInputs, settings: Settings, *, cudnn: bool = False
) -> Float[Array, "m d"]:
  """Returns, by heads, softmax(query · key / √e + mask) · value, dropped out.

  It is the context of each query, in the shape of the queries.

  Args:
    inputs: Arrays of the layer.
    settings: What the program is compiled for.
    cudnn: Whether cuDNN's kernel computes it on GPUs, in bfloat16 or float16.
      The kernel has no dropout, so that XLA computes what is dropped out.
  """
  query, key, value, sequence, tokens, position = inputs
  rows, head_size = len(sequence), settings.head_size
  heads = query.shape[1] // head_size

  def by_heads(x: Float[Array, "m d"]) -> Float[Array, "r q h e"]:
    return nn.with_logical_constraint(
      x.reshape(rows, -1, heads, head_size), _AXES_BY_HEAD
    )

  attends = sequence[:, : tokens.shape[1], None] == sequence[:, None, :]
  mask = jnp.where(attends, 0.0, settings.mask_value)[:, None]
  if cudnn and not settings.dropout_rate:
    context = jax.nn.dot_product_attention(
      *map(by_heads, inputs[:3]),
      bias=mask.astype(query.dtype),
      implementation="cudnn",
    )
  else:
    query *= jnp.asarray(head_size**-0.5, query.dtype)
    scores = jnp.einsum(
      "rqhe,rlhe->rhql",
      by_heads(query),
      by_heads(key),
      preferred_element_type=jnp.float32,
    )
    weights = jax.nn.softmax(scores + mask, axis=-1).astype(value.dtype)
    head = jnp.arange(heads).reshape(1, heads, 1, 1) * settings.max_positions
    columns = (head + position[:, None, None, :]).astype(jnp.uint32)
    weights = drop(
      weights, tokens[:, None, :, None], columns, settings.dropout_rate
    )
    context = jnp.einsum("rhql,rlhe->rqhe", weights, by_heads(value))
  context = nn.with_logical_constraint(context, _AXES_BY_HEAD)
  return context.reshape(query.shape)
