"""Initial values of BERT's arrays, with their logical axes."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

_NOISE_STDDEV = 0.02


def normal(stddev: float, *axes: str) -> nn.initializers.Initializer:
  """Returns BERT's initial values: normal ones, truncated."""
  values = nn.initializers.truncated_normal(stddev)
  return nn.with_logical_partitioning(values, axes)


def zeros(axis: str) -> nn.initializers.Initializer:
  """Returns the initial values of a bias."""
  return nn.with_logical_partitioning(nn.initializers.zeros_init(), (axis,))


def sinusoids(stddev: float) -> nn.initializers.Initializer:
  """Returns sines and cosines of positions, with deviation `stddev`.

  Their wavelengths reach from 2π tokens to about 2π times their number.
  """

  def init(
    key: jax.Array, shape: tuple[int, int], dtype: jax.typing.DTypeLike = float
  ) -> Float[Array, "p d"]:
    del key
    positions, size = shape
    half = size // 2
    rates = float(positions) ** (-jnp.arange(half) / half)
    angles = jnp.outer(jnp.arange(positions), rates)
    waves = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=1)
    return (stddev * jnp.sqrt(2.0) * waves).astype(dtype)

  return nn.with_logical_partitioning(init, ("position", "embed"))


def near_identity() -> nn.initializers.Initializer:
  """Returns values of a square matrix: the identity and some noise."""
  noise = nn.initializers.truncated_normal(_NOISE_STDDEV)
  return lambda key, shape, dtype=jnp.float32: (
    jnp.eye(*shape, dtype=dtype) + noise(key, shape, dtype)
  )
