"""Arithmetic is counted in the jaxpr, with the trips of its loops."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import Mesh, PartitionSpec

from realm_jax.models.attention import fused
from realm_jax.models.attention.inputs import AttentionInputs, Settings
from realm_jax.precompilation.chips import CHIPS
from realm_jax.precompilation.jaxpr_arithmetic import MatrixProduct, flops
from realm_jax.precompilation.pallas_kernels import kernels, product_passes

_X = jnp.ones((8, 16))
_W = jnp.ones((16, 16))
_PRODUCT = 2 * 8 * 16 * 16


def _count(function, *arguments, **settings) -> int:
  return flops(jax.make_jaxpr(function)(*arguments).jaxpr, **settings)


def test_a_product_counts_two_operations_for_each_that_is_summed():
  assert _count(lambda x, w: x @ w, _X, _W) == _PRODUCT
  batched = lambda x, y: jnp.einsum("bqd,bkd->bqk", x, y)  # noqa: E731
  x, y = jnp.ones((3, 4, 5)), jnp.ones((3, 6, 5))
  assert _count(batched, x, y) == 2 * 3 * 4 * 6 * 5


def test_a_convolution_counts_its_window():
  x, kernel = jnp.ones((2, 10, 3)), jnp.ones((4, 3, 7))
  convolve = functools.partial(
    lax.conv_general_dilated,
    window_strides=(1,),
    padding="VALID",
    dimension_numbers=("NWC", "WIO", "NWC"),
  )
  assert _count(convolve, x, kernel) == 2 * (2 * 7 * 7) * (4 * 3)


def test_loops_count_their_trips():
  def scanned(x, w):
    return lax.scan(lambda x, _: (x @ w, None), x, length=5)[0]

  def bounded_by_an_argument(x, w, n):
    return lax.fori_loop(0, n, lambda _, x: x @ w, x)

  assert _count(scanned, _X, _W) == 5 * _PRODUCT
  count = functools.partial(_count, bounded_by_an_argument, _X, _W, 3)
  assert count(unknown_trips=9) == 9 * _PRODUCT


def test_the_largest_branch_of_a_conditional_counts():
  def either(c, x, w):
    return lax.cond(c, lambda x: x @ w @ w, lambda x: x @ w, x)

  assert _count(either, True, _X, _W) == 2 * _PRODUCT


def test_gradients_recomputation_and_nested_programs_are_followed():
  @jax.jit
  def loss(w):
    return jnp.sum(jnp.tanh(_X @ w) @ w)

  # Backward has two products for the last one and one for the first, whose
  # other operand is a constant.
  assert _count(jax.grad(loss), _W) == 5 * _PRODUCT
  remat = jax.grad(jax.checkpoint(loss))
  assert _count(remat, _W) >= 6 * _PRODUCT


def test_the_body_of_a_shard_map_counts_for_each_device():
  mesh = Mesh(jax.devices()[:4], ("data",))
  rows = PartitionSpec("data")
  product = jax.shard_map(
    lambda x, w: x @ w,
    mesh=mesh,
    in_specs=(rows, PartitionSpec()),
    out_specs=rows,
  )
  assert _count(product, _X, _W) == _PRODUCT


def _exponential_of_product(x, y):
  def kernel(x_ref, y_ref, out_ref):
    out_ref[...] = jnp.exp(jnp.dot(x_ref[...], y_ref[...]))

  return pl.pallas_call(
    kernel,
    grid=(4, 2),
    in_specs=[
      pl.BlockSpec((32, 64), lambda i, j: (i, 0)),
      pl.BlockSpec((64, 128), lambda i, j: (0, j)),
    ],
    out_specs=pl.BlockSpec((32, 128), lambda i, j: (i, j)),
    out_shape=jax.ShapeDtypeStruct((128, 256), jnp.float32),
    name="exponential_of_product",
  )(x, y)


def test_a_kernel_counts_its_grid():
  x, y = jnp.ones((128, 64)), jnp.ones((64, 256))
  assert _count(_exponential_of_product, x, y) == 2 * 128 * 64 * 256


def test_a_kernel_has_products_exponentials_and_copies():
  def thrice(x, y):
    def again(x, _):
      return x + _exponential_of_product(x, y)[:, :64], None

    return lax.scan(again, x, length=3)[0]

  x, y = jnp.ones((128, 64)), jnp.ones((64, 256))
  chip = CHIPS["v5e"]
  (kernel,) = kernels(jax.make_jaxpr(thrice)(x, y).jaxpr, chip)
  assert (kernel.name, kernel.calls) == ("exponential_of_product", 3)
  assert kernel.exponentials == 3 * 128 * 256
  # The rows of x are copied once each, and those of y again for each of them.
  copied = 4 * (128 * 64 + 4 * 64 * 256 + 128 * 256)
  assert kernel.bytes == 3 * copied
  # A step's 32 rows and 64 of 128 columns of a tile still take a whole tile.
  cycles = 8 * 128 / 4
  assert kernel.product_seconds == pytest.approx(3 * cycles / chip.clock)
  assert kernel.seconds == kernel.memory_seconds


def test_the_kernels_of_attention_have_their_names():
  query, numbers = jnp.ones((32, 128)), jnp.zeros((2, 16), jnp.int32)
  settings = Settings(
    head_size=64, max_positions=16, mask_value=-1e4, dropout_rate=0.1
  )

  def total(query):
    tokens = numbers.astype(jnp.uint32)
    inputs = AttentionInputs(
      *(query, query, query, jnp.zeros((3, 128))), numbers, tokens, numbers
    )
    return fused.attend(inputs, settings).sum()

  found = kernels(jax.make_jaxpr(jax.grad(total))(query).jaxpr, CHIPS["v5e"])
  names = [(kernel.name, kernel.calls) for kernel in found]
  assert names == [("attention_forward", 1), ("attention_backward", 1)]


def test_an_array_that_a_kernel_copies_itself_counts_once():
  def kernel(x_ref, y_ref, out_ref):
    del x_ref
    out_ref[...] = y_ref[...]

  def copy(x, y):
    return pl.pallas_call(
      kernel,
      in_specs=[pl.BlockSpec(memory_space=pl.ANY), pl.BlockSpec()],
      out_shape=jax.ShapeDtypeStruct(y.shape, y.dtype),
    )(x, y)

  x, y = jnp.ones((1000, 128)), jnp.ones((8, 128))
  (kernel_of_copy,) = kernels(jax.make_jaxpr(copy)(x, y).jaxpr, CHIPS["v5e"])
  assert kernel_of_copy.bytes == 4 * (1000 * 128 + 2 * 8 * 128)


def test_a_short_contraction_leaves_half_of_a_matrix_unit_idle():
  chip = CHIPS["v5e"]
  whole = MatrixProduct(batch=1, rows=512, depth=128, columns=384)
  half = MatrixProduct(batch=1, rows=512, depth=64, columns=384)
  assert product_passes(whole, 1, chip) == product_passes(half, 1, chip)
  # At full tiles the rate is that of the chip's peak.
  cycles = product_passes(whole, 1, chip) / chip.matrix_units
  assert whole.flops / (cycles / chip.clock) == pytest.approx(chip.peak_flops)
