"""Products in bfloat16, on any CPU: only their operands are rounded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from realm_jax.models import matmul, platforms


@pytest.fixture
def multiplies_bfloat16(monkeypatch):
  monkeypatch.setattr(platforms, "_multiplies_bfloat16_fast", lambda: True)
  with jax.default_matmul_precision("default"):
    yield


def _exact(subscripts, left, right):
  rounded = (
    np.asarray(x, jnp.bfloat16).astype(np.float64) for x in (left, right)
  )
  return np.einsum(subscripts, *rounded)


@pytest.mark.usefixtures("multiplies_bfloat16")
@pytest.mark.parametrize("batch", [(), (2, 3)])
@pytest.mark.parametrize("width", [4, 40])
def test_products_are_summed_in_float32(batch, width):
  rng = np.random.default_rng(0)
  left, right = (
    rng.normal(size=(*batch, 32, size)).astype(np.float32)
    for size in (16, width)
  )
  swapped = left.swapaxes(-1, -2), right.swapaxes(-1, -2)
  expected = _exact("...km,...kn->...mn", left, right)
  for function, operands in (
    (matmul.matmul, (swapped[0], right)),
    (matmul.matmul_nt, swapped),
    (matmul.matmul_tn, (left, right)),
  ):
    product = jax.jit(function)(*operands)
    assert product.dtype == jnp.float32
    np.testing.assert_allclose(product, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("multiplies_bfloat16")
def test_gradients_of_a_layer_are_such_products():
  rng = np.random.default_rng(0)
  x, kernel, gradient = (
    rng.normal(size=shape).astype(np.float32)
    for shape in ((2, 8, 16), (16, 24), (2, 8, 24))
  )

  @jax.jit
  def differentiate(x, kernel, gradient):
    product, pull = jax.vjp(
      lambda *operands: matmul.dot_general(*operands, (((2,), (0,)), ((), ()))),
      *(x, kernel),
    )
    return product, *pull(gradient)

  product, d_x, d_kernel = differentiate(x, kernel, gradient)
  for result, expected in (
    (product, _exact("bnd,df->bnf", x, kernel)),
    (d_x, _exact("bnf,df->bnd", gradient, kernel)),
    (d_kernel, _exact("bnd,bnf->df", x, gradient)),
  ):
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("multiplies_bfloat16")
def test_float32_is_given_where_it_is_asked_for():
  rng = np.random.default_rng(0)
  left, right = rng.normal(size=(2, 16, 16)).astype(np.float32)
  multiply = jax.jit(matmul.matmul)
  assert np.abs(multiply(left, right) - left @ right).max() > 1e-3
  with jax.default_matmul_precision("float32"):
    product = multiply(left, right)
  np.testing.assert_allclose(product, left @ right, rtol=1e-5, atol=1e-5)
