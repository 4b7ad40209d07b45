"""Dropout whose masks are hashes of the elements' positions.

An element's random number is a hash of the step's key, its token (the sequence
and the position in it) and its column. It costs a few integer operations in the
loop that multiplies. Nothing is stored for the backward pass, which computes it
again, and the masks do not depend on the layout of sequences in rows or over
devices.
"""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, UInt32

_GOLDEN_RATIO = 0x9E3779B9


def mix(bits: UInt32[Array, "*s"]) -> UInt32[Array, "*s"]:
  """Mixes 32 bits by a bijection in which each bit flips half of the result.

  The multipliers are from C. Wellons's search for the least bias, "Prospecting
  for hash functions" (2018).
  """
  bits ^= bits >> 16
  bits *= jnp.uint32(0x7FEB352D)
  bits ^= bits >> 15
  bits *= jnp.uint32(0x846CA68B)
  return bits ^ (bits >> 16)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def drop(
  x: Float[Array, "..."],
  rows: UInt32[Array, "..."],
  columns: UInt32[Array, "..."],
  rate: float,
) -> Float[Array, "..."]:
  """Zeroes elements of `x` with probability `rate`, and scales the others up.

  `rows` are hashes of the elements' tokens, and `columns` are indices within
  tokens; both broadcast against `x`. The backward pass computes the mask again,
  instead of storing it.
  """
  if rate == 0.0:
    return x
  bits = mix(rows + columns * jnp.uint32(_GOLDEN_RATIO))
  is_kept = bits >= jnp.uint32(min(round(rate * 2**32), 2**32 - 1))
  scale = jnp.asarray(1.0 / (1.0 - rate), x.dtype)
  return jnp.where(is_kept, x * scale, jnp.zeros((), x.dtype))


drop.defvjp(
  lambda x, rows, columns, rate: (
    drop(x, rows, columns, rate),
    (rows, columns),
  ),
  lambda rate, hashes, gradient: (drop(gradient, *hashes, rate), None, None),
)


def is_dropping(module: nn.Module, rate: float) -> bool:
  """Returns whether a module drops, which it does if `apply` has a key."""
  return rate > 0.0 and module.has_rng("dropout")


class Dropout(nn.Module):
  """Applies `drop` with probability `rate`, if there is a `dropout` key."""

  rate: float

  @nn.compact
  def __call__(
    self, x: Float[Array, "n d"], tokens: UInt32[Array, " n"]
  ) -> Float[Array, "n d"]:
    """Drops elements of `x`, which has a row for each of the tokens."""
    if not is_dropping(self, self.rate):
      return x
    rows = hash_tokens(self, tokens)[:, None]
    columns = jnp.arange(x.shape[-1], dtype=jnp.uint32)[None, :]
    return drop(x, rows, columns, self.rate)


def hash_tokens(
  module: nn.Module, tokens: UInt32[Array, "*s"]
) -> UInt32[Array, "*s"]:
  """Returns hashes of tokens that differ by module and by step."""
  return mix(tokens ^ jax.random.bits(module.make_rng("dropout")))
