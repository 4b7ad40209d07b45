"""LayerNorm (Ba et al. 2016), with a backward pass that keeps little.

See `realm_jax/models/__init__.py` for what that is good for.
"""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def normalize(
  x: Float[Array, "*n d"],
  scale: Float[Array, " d"],
  bias: Float[Array, " d"],
  epsilon: float,
) -> Float[Array, "*n d"]:
  """Returns (x − mean) / √(variance + ε) · scale + bias, in float32.

  The backward pass keeps `x` in its own type.
  """
  return _forward(x, scale, bias, epsilon)[0]


def _forward(
  x: Float[Array, "*n d"],
  scale: Float[Array, " d"],
  bias: Float[Array, " d"],
  epsilon: float,
) -> tuple[Float[Array, "*n d"], tuple[Float[Array, "..."], ...]]:
  wide = x.astype(jnp.float32)
  mean = jnp.mean(wide, axis=-1, keepdims=True)
  variance = jnp.mean(jnp.square(wide - mean), axis=-1, keepdims=True)
  factor = jax.lax.rsqrt(variance + epsilon)
  row = (1,) * (x.ndim - 1) + (-1,)
  y = (wide - mean) * factor * scale.reshape(row) + bias.reshape(row)
  return y, (x, mean, factor, scale)


def _backward(
  epsilon: float,
  residuals: tuple[Float[Array, "..."], ...],
  gradient: Float[Array, "*n d"],
) -> tuple[Float[Array, "*n d"], Float[Array, " d"], Float[Array, " d"]]:
  del epsilon
  x, mean, factor, scale = residuals
  gradient = gradient.astype(jnp.float32)
  row = (1,) * (x.ndim - 1) + (-1,)
  batch = tuple(range(x.ndim - 1))
  normal = (x.astype(jnp.float32) - mean) * factor
  d_normal = gradient * scale.reshape(row)
  d_x = factor * (
    d_normal
    - jnp.mean(d_normal, axis=-1, keepdims=True)
    - normal * jnp.mean(d_normal * normal, axis=-1, keepdims=True)
  )
  return (
    d_x.astype(x.dtype),
    jnp.sum(gradient * normal, axis=batch),
    jnp.sum(gradient, axis=batch),
  )


normalize.defvjp(_forward, _backward)


class LayerNorm(nn.Module):
  """`normalize` with parameters `scale` and `bias`; returns `dtype`."""

  epsilon: float
  dtype: jax.typing.DTypeLike

  @nn.compact
  def __call__(self, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
    scale, bias = (
      self.param(
        name, nn.with_logical_partitioning(init, ("norm",)), x.shape[-1:]
      )
      for name, init in (
        ("scale", nn.initializers.ones_init()),
        ("bias", nn.initializers.zeros_init()),
      )
    )
    return normalize(x, scale, bias, self.epsilon).astype(self.dtype)
