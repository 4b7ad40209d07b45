"""Dropout whose random numbers are a hash of where an element stands.

Each element's number is a hash of the step's key, its token (which sequence,
which position in it) and its column. So it costs a few integer operations
inside the loop that multiplies anyway, nothing is kept for the backward pass,
which computes it again, and the masks do not depend on how sequences are laid
out in rows or over devices.
"""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, UInt32

_GOLDEN_RATIO = 0x9E3779B9


def mix(bits: UInt32[Array, "*s"]) -> UInt32[Array, "*s"]:
  """A bijection of 32 bits in which each input bit flips half the output.

  The multipliers are those of C. Wellons's search for the least bias,
  "Prospecting for hash functions" (2018).
  """
  bits ^= bits >> 16
  bits *= jnp.uint32(0x7FEB352D)
  bits ^= bits >> 15
  bits *= jnp.uint32(0x846CA68B)
  return bits ^ (bits >> 16)


def _kept(rows, columns, rate: float):
  bits = mix(rows + columns * jnp.uint32(_GOLDEN_RATIO))
  return bits >= jnp.uint32(min(round(rate * 2**32), 2**32 - 1))


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def drop(
  x: Float[Array, "..."],
  rows: UInt32[Array, "..."],
  columns: UInt32[Array, "..."],
  rate: float,
) -> Float[Array, "..."]:
  """Zeroes elements of `x` with probability `rate`, and scales the others up.

  Args:
    x: anything.
    rows: hashes of the elements' tokens; broadcasts against `x`.
    columns: the elements' numbers in their tokens; broadcasts against `x`.
    rate: from 0 to below 1.
  """
  if rate == 0.0:
    return x
  scale = jnp.asarray(1.0 / (1.0 - rate), x.dtype)
  return jnp.where(
    _kept(rows, columns, rate), x * scale, jnp.zeros((), x.dtype)
  )


def _drop_forward(x, rows, columns, rate):
  return drop(x, rows, columns, rate), (rows, columns)


def _drop_backward(rate, residuals, gradient):
  return drop(gradient, *residuals, rate), None, None


drop.defvjp(_drop_forward, _drop_backward)


class Dropout(nn.Module):
  """Zeroes elements with probability `rate` and scales the others up.

  Attributes:
    rate: from 0 (nothing is dropped) to below 1.
  """

  rate: float

  @nn.compact
  def __call__(
    self,
    x: Float[Array, "n d"],
    tokens: UInt32[Array, " n"],
    *,
    train: bool,
  ) -> Float[Array, "n d"]:
    """Drops elements of `x`.

    Args:
      x: a row for each token.
      tokens: the tokens' numbers.
      train: whether to drop at all.
    """
    if not train or self.rate == 0.0:
      return x
    rows = hashed(self, tokens)[:, None]
    columns = jnp.arange(x.shape[-1], dtype=jnp.uint32)[None, :]
    return drop(x, rows, columns, self.rate)


def hashed(
  module: nn.Module, tokens: UInt32[Array, "*s"]
) -> UInt32[Array, "*s"]:
  """Hashes of tokens that differ by module and by step."""
  return mix(tokens ^ jax.random.bits(module.make_rng("dropout")))
