"""Activations, and the linear layer behind one with a lean backward pass.

The backward pass (see `realm_jax/models/__init__.py`) keeps the input of the
activation alone.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_Function = Callable[[Float[Array, "*s"]], Float[Array, "*s"]]
_Pair = tuple[Float[Array, "*s"], Float[Array, "*s"]]

# gelu(x) ≈ x · sigmoid(2 √(2/π) (x + 0.044715 x³)), the same as the form with
# the hyperbolic tangent (Hendrycks and Gimpel 2016).
_LINEAR = 1.5957691216057308
_CUBIC = _LINEAR * 0.044715
_ROOT_HALF = 0.7071067811865476
_DENSITY_AT_0 = 0.3989422804014327


class Activation(NamedTuple):
  """An activation function, in the forms of both passes.

  Attributes:
    function: Activation, as the forward pass computes it.
    value_and_derivative: Activation and its derivative, in another form.
  """

  function: _Function
  value_and_derivative: Callable[[Float[Array, "*s"]], _Pair]


def _gelu_tanh_backward(x: Float[Array, "*s"]) -> _Pair:
  squared = x * x
  gate = jax.nn.sigmoid(x * (_LINEAR + _CUBIC * squared))
  value = x * gate
  return value, gate + value * (1 - gate) * (_LINEAR + 3 * _CUBIC * squared)


def _gelu_backward(x: Float[Array, "*s"]) -> _Pair:
  cumulative = 0.5 * jax.lax.erfc(-x * _ROOT_HALF)
  density = _DENSITY_AT_0 * jnp.exp(-0.5 * x * x)
  return x * cumulative, cumulative + x * density


ACTIVATIONS = {
  "gelu_tanh": Activation(
    functools.partial(jax.nn.gelu, approximate=True), _gelu_tanh_backward
  ),
  "gelu": Activation(
    functools.partial(jax.nn.gelu, approximate=False), _gelu_backward
  ),
}


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def activate_and_project(
  activation: str,
  x: Float[Array, "n i"],
  kernel: Float[Array, "i o"],
  bias: Float[Array, " o"],
) -> Float[Array, "n o"]:
  """Returns activation(x) · kernel + bias."""
  value = ACTIVATIONS[activation].function(x)
  return value @ kernel + bias[None, :]


_Residuals = tuple[Float[Array, "n i"], Float[Array, "i o"]]


def _forward(
  activation: str,
  x: Float[Array, "n i"],
  kernel: Float[Array, "i o"],
  bias: Float[Array, " o"],
) -> tuple[Float[Array, "n o"], _Residuals]:
  return activate_and_project(activation, x, kernel, bias), (x, kernel)


def _backward(
  activation: str, residuals: _Residuals, gradient: Float[Array, "n o"]
) -> tuple[Float[Array, "n i"], Float[Array, "i o"], Float[Array, " o"]]:
  x, kernel = residuals
  value, derivative = ACTIVATIONS[activation].value_and_derivative(x)
  return (
    (gradient @ kernel.T) * derivative,
    value.T @ gradient,
    jnp.sum(gradient, axis=0),
  )


activate_and_project.defvjp(_forward, _backward)
