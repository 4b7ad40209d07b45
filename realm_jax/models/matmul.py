"""Matrix products of float32 arrays, in bfloat16 on CPUs with fast support.

TPUs multiply float32 arrays in bfloat16 and sum the products in float32. Here,
CPUs with AMX or AVX-512 for bfloat16 do the same, and everything between the
products stays in float32. `jax.default_matmul_precision("float32")`, or the
environment variable JAX_DEFAULT_MATMUL_PRECISION, selects products in float32.
Other CPUs always use float32, and GPUs and TPUs use jax's default.

On CPUs, XLA multiplies in bfloat16 only if the result is float32, the operands
are row-major, and the last dimension of the left operand is contracted. Other
products are computed in float32, six times as slowly. So `matmul_tn`
materializes a transpose, and layout constraints keep XLA from folding it into
the product.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float

from realm_jax.models import AnyArray
from realm_jax.models.platforms import multiplies_bfloat16, platform


def as_operand(x: Float[Array, "*s"]) -> Float[Array, "*s"]:
  """Returns an array as an operand of products, possibly in bfloat16."""
  return x.astype(jnp.bfloat16) if multiplies_bfloat16() else x


def matmul(
  left: Float[Array, "*b m k"], right: Float[Array, "*b k n"]
) -> Float[Array, "*b m n"]:
  """Returns left · right; products in bfloat16 have a float32 result."""
  return _product(left, right, left.ndim - 1, right.ndim - 2)


def matmul_nt(
  left: Float[Array, "*b m k"],
  right: Float[Array, "*b n k"],
  dtype: jax.typing.DTypeLike | None = None,
) -> Float[Array, "*b m n"]:
  """Returns left · rightᵀ, like `matmul` or with another result type."""
  return _product(left, right, left.ndim - 1, right.ndim - 1, dtype)


def matmul_tn(
  left: Float[Array, "*b k m"], right: Float[Array, "*b k n"]
) -> Float[Array, "*b m n"]:
  """Returns leftᵀ · right, like `matmul`."""
  if not multiplies_bfloat16():
    return _product(left, right, left.ndim - 2, right.ndim - 2)
  left, right = as_operand(left), as_operand(right)
  if left.shape[-1] > right.shape[-1]:  # The narrower one is transposed.
    return matmul(right.mT, left).mT
  return matmul(left.mT, right)


def sum_of_rows(x: Float[Array, "r *s"]) -> Float[Array, "*s"]:
  """Returns the sum over a few rows of many elements, in float32.

  CPUs multiply by ones in a twentieth of the time that XLA's sum takes.
  """
  if platform() != "cpu":
    return x.sum(axis=0, dtype=jnp.float32)
  # Products of a single row in bfloat16 are slow.
  ones = jnp.ones((16 if x.dtype == jnp.bfloat16 else 1, len(x)), x.dtype)
  rows = x.reshape(len(x), -1)
  dimensions = (((1,), (0,)), ((), ()))
  sums = lax.dot_general(
    ones, rows, dimensions, preferred_element_type=jnp.float32
  )
  return sums[0].reshape(x.shape[1:])


def _product(
  left: Float[Array, "..."],
  right: Float[Array, "..."],
  left_axis: int,
  right_axis: int,
  dtype: jax.typing.DTypeLike | None = None,
) -> Float[Array, "..."]:
  batch = tuple(range(left.ndim - 2))
  dimensions = (((left_axis,), (right_axis,)), (batch, batch))
  # For a single row, float32 is read only once, and faster: 1 ms instead of 19.
  is_vector = left.shape[-2] == 1 and right.dtype == jnp.float32
  if is_vector or not multiplies_bfloat16():
    left = left.astype(right.dtype)
    return lax.dot_general(
      left, right, dimensions, preferred_element_type=dtype
    )
  product = lax.dot_general(
    _row_major(as_operand(left)),
    _row_major(as_operand(right)),
    dimensions,
    preferred_element_type=jnp.float32,
  )
  return _row_major(product)


def _row_major(x: Float[Array, "*s"]) -> Float[Array, "*s"]:
  return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


def dot_general(
  x: Float[Array, "*b d"],
  kernel: Float[AnyArray, "d f"],
  dimensions: tuple[Any, Any],
  precision: jax.lax.PrecisionLike = None,
) -> Float[Array, "*b f"]:
  """Multiplies by a matrix, as the `dot_general` of `flax.linen.Dense`.

  With an explicit precision, jax's product is used.
  """
  if precision is not None or not multiplies_bfloat16():
    return lax.dot_general(x, kernel, dimensions, precision=precision)
  rows = x.reshape(-1, x.shape[-1]).astype(jnp.float32)
  product = _dense(rows, jnp.asarray(kernel, jnp.float32))
  return product.reshape(*x.shape[:-1], -1).astype(x.dtype)


_Operands = tuple[Float[Array, "n d"], Float[Array, "d f"]]


@jax.custom_vjp
def _dense(
  x: Float[Array, "n d"], kernel: Float[Array, "d f"]
) -> Float[Array, "n f"]:
  return matmul(x, kernel)


def _forward(
  x: Float[Array, "n d"], kernel: Float[Array, "d f"]
) -> tuple[Float[Array, "n f"], _Operands]:
  operands = as_operand(x), as_operand(kernel)
  return matmul(*operands), operands


def _backward(operands: _Operands, gradient: Float[Array, "n f"]) -> _Operands:
  (x, kernel), gradient = operands, as_operand(gradient)
  return matmul_nt(gradient, kernel), matmul_tn(x, gradient)


_dense.defvjp(_forward, _backward)
