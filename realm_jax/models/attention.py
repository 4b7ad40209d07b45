"""Attention by heads, and self-attention within sequences that share rows.

It is compiled by XLA on every platform, or computed by cuDNN's kernel on GPUs.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int, UInt32

from realm_jax.models import AnyArray, matmul
from realm_jax.models.dropout import drop

# Checkpoint name of arrays that a scan over layers keeps for the backward pass.
KEPT = "kept"
# Logical axes of queries, keys, values and of the result.
AXES = ("activation_batch", "activation_heads")
# Logical axes of arrays with a separate dimension for heads.
_AXES_BY_HEAD = (
  "activation_batch",
  "activation_heads",
  "activation_length",
  "activation_kv",
)


def attend(
  query: Float[Array, "m d"],
  key: Float[Array, "n d"],
  value: Float[Array, "n d"],
  *,
  sequence: Int[AnyArray, "r l"],
  position: Int[AnyArray, "r l"],
  tokens: UInt32[Array, "r q"],
  head_size: int,
  max_positions: int,
  mask_value: float,
  dropout_rate: float,
  cudnn: bool = False,
  reach: Int[AnyArray, ""] | None = None,
) -> Float[Array, "m d"]:
  """Returns softmax(query · key / √e + mask) · value by head, with dropout.

  The result is the context of each query, in the shape of the queries. Among
  n = r · l tokens in r rows, only the first q of each row attend, m = r · q in
  total.

  With `cudnn`, cuDNN's kernel is used on GPUs, in bfloat16 or float16. The
  kernel has no dropout, and no gradient for odd numbers of queries or keys. In
  these cases, such as for the pooled token in the last layer, XLA is used.

  Args:
    query: Queries of the tokens that attend, with concatenated heads.
    key: Keys of all tokens, in the same layout.
    value: Values of all tokens, in the same layout.
    sequence: Index of each token's sequence, to which it attends.
    position: Position of each token in its sequence.
    tokens: Hash of each token that attends, for dropout.
    head_size: Size e of a head.
    max_positions: Number of positions of the model; column numbers of dropout
      are `head · max_positions + position`.
    mask_value: Score added to keys of other sequences.
    dropout_rate: Share of weights to drop; 0 when not training.
    cudnn: Whether cuDNN's kernel may be used.
    reach: Maximum distance of tokens that are attended to; None for all.
  """
  split = functools.partial(by_heads, rows=len(sequence), head_size=head_size)
  attends = sequence[:, : tokens.shape[1], None] == sequence[:, None, :]
  if reach is not None:
    query_position = position[:, : tokens.shape[1], None]
    attends &= jnp.abs(query_position - position[:, None, :]) <= reach
  mask = jnp.where(attends, 0.0, mask_value)[:, None]
  odd = tokens.shape[1] % 2 or sequence.shape[1] % 2
  if cudnn and not dropout_rate and not odd:
    context = jax.nn.dot_product_attention(
      *(split(x).transpose(0, 2, 1, 3) for x in (query, key, value)),
      bias=mask.astype(query.dtype),
      implementation="cudnn",
    ).transpose(0, 2, 1, 3)
  else:
    heads = query.shape[1] // head_size
    context = attend_by_heads(
      ByHeads(
        split(query),
        split(key),
        split(value),
        mask,
        tokens[:, None, :, None],
        dropout_columns(position, heads, max_positions),
      ),
      dropout_rate,
      head_size**-0.5,
    )
  return side_by_side(context)


def by_heads(
  x: Float[Array, "m d"], *, rows: int, head_size: int
) -> Float[Array, "{rows} h q {head_size}"]:
  """Splits concatenated heads into a separate dimension."""
  x = x.reshape(rows, -1, x.shape[-1] // head_size, head_size)
  return nn.with_logical_constraint(x.transpose(0, 2, 1, 3), _AXES_BY_HEAD)


def side_by_side(x: Float[Array, "r h q e"]) -> Float[Array, "m d"]:
  """Concatenates the heads; the inverse of `by_heads`."""
  x = nn.with_logical_constraint(x, _AXES_BY_HEAD)
  _, heads, _, head_size = x.shape
  return x.transpose(0, 2, 1, 3).reshape(-1, heads * head_size)


def dropout_columns(
  position: Int[AnyArray, "#r l"], heads: int, max_positions: int
) -> UInt32[Array, "#r {heads} 1 l"]:
  """Returns `head · max_positions + position` of each key."""
  head = jnp.arange(heads).reshape(1, heads, 1, 1) * max_positions
  return (head + position[:, None, None, :]).astype(jnp.uint32)


class ByHeads(NamedTuple):
  """Arrays of a layer's attention, with a separate dimension for heads.

  `rows` and `columns` identify the weights for dropout. The mask, which has no
  gradient, and the bias are added to the scores.
  """

  query: Float[Array, "r h q e"]
  key: Float[Array, "r h l e"]
  value: Float[Array, "r h l e"]
  mask: Float[Array, "#r 1 #q l"]
  rows: UInt32[Array, "r 1 q 1"]
  columns: UInt32[Array, "#r h 1 l"]
  bias: Float[Array, "1 h #q l"] | None = None


def weights(
  query: Float[Array, "r h q e"],
  key: Float[Array, "r h l e"],
  mask: Float[Array, "#r 1 #q l"],
  bias: Float[Array, "1 h #q l"] | None,
  scale: float,
) -> Float[Array, "r h q l"]:
  """Returns softmax(scale · query · key + mask + bias), in float32."""
  scores = matmul.matmul_nt(query, key, jnp.float32) * scale + mask
  scores = scores if bias is None else scores + bias
  return jax.nn.softmax(scores, axis=-1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def attend_by_heads(
  inputs: ByHeads, dropout_rate: float, scale: float
) -> Float[Array, "r h q e"]:
  """Returns the `weights`, after dropout, times the values.

  The backward pass stores the softmax, but not the weights after dropout, and
  sums over a head's few dimensions instead of over keys, as the gradient of
  softmax would (Dao et al. 2022, section 3.1). On CPUs, where `jax.checkpoint`
  would store the weights anyway, this makes a pre-training step a quarter
  faster.
  """
  return _forward(inputs, dropout_rate, scale)[0]


_Residuals = tuple[ByHeads, Float[Array, "r h q l"], Float[Array, "r h q e"]]


def _forward(
  inputs: ByHeads, dropout_rate: float, scale: float
) -> tuple[Float[Array, "r h q e"], _Residuals]:
  query, key, value, mask, rows, columns, bias = inputs
  softmax = weights(query, key, mask, bias, scale).astype(value.dtype)
  softmax = checkpoint_name(softmax, KEPT)
  dropped = drop(softmax, rows, columns, dropout_rate)
  context = matmul.matmul(dropped, value).astype(value.dtype)
  context = checkpoint_name(context, KEPT)
  return context, (inputs, softmax, context)


def _backward(
  dropout_rate: float,
  scale: float,
  residuals: _Residuals,
  gradient: Float[Array, "r h q e"],
) -> tuple[ByHeads]:
  inputs, softmax, context = residuals
  query, key, value = inputs[:3]
  # Written differently from the forward pass; otherwise the compiler would keep
  # those weights.
  ones = jnp.ones((), softmax.dtype)
  factors = drop(ones, inputs.rows, inputs.columns, dropout_rate)
  d_value = matmul.matmul_tn(softmax * factors, gradient)
  d_softmax = matmul.matmul_nt(gradient, value) * factors
  total = jnp.einsum(
    "rhqe,rhqe->rhq", gradient, context, preferred_element_type=jnp.float32
  )
  d_scores = softmax * (d_softmax - total[..., None].astype(d_softmax.dtype))
  d_scores = d_scores.astype(softmax.dtype)
  d_query = scale * matmul.matmul(d_scores, key)
  d_key = scale * matmul.matmul_tn(d_scores, query)
  d_query, d_key, d_value = (
    x.astype(query.dtype) for x in (d_query, d_key, d_value)
  )
  # The mask and integers have no gradients.
  none: Any = None
  d_bias = inputs.bias
  if d_bias is not None:
    d_bias = matmul.sum_of_rows(d_scores).astype(d_bias.dtype)[None]
  return (ByHeads(d_query, d_key, d_value, none, none, none, d_bias),)


attend_by_heads.defvjp(_forward, _backward)
