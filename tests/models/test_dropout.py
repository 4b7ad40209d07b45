"""Dropout: its rate, its independence, and that backward drops the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from realm_jax.models.dropout import Dropout, drop, mix

TOKENS, WIDTH = 4096, 128


def _kept(rate, *, key=0, tokens=TOKENS, width=WIDTH):
  module = Dropout(rate)
  numbers = jnp.arange(tokens, dtype=jnp.uint32)
  rngs = {"dropout": jax.random.key(key)}
  ones = jnp.ones((tokens, width))
  return np.asarray(module.apply({}, ones, numbers, rngs=rngs))


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_the_rate_by_rows_and_columns(rate):
  kept = _kept(rate)
  assert set(np.unique(kept)) == {0.0, np.float32(1 / (1 - rate))}
  dropped = kept == 0
  # Five standard deviations of a binomial.
  for axis, count in ((None, TOKENS * WIDTH), (0, TOKENS), (1, WIDTH)):
    share = dropped.mean(axis=axis)
    assert np.abs(share - rate).max() < 5 * np.sqrt(rate * (1 - rate) / count)


def test_a_gradient_flows_where_its_element_stayed():
  x = jnp.linspace(1, 2, 64).reshape(8, 8)
  rows = mix(jnp.arange(8, dtype=jnp.uint32))[:, None]
  columns = jnp.arange(8, dtype=jnp.uint32)[None]
  value, gradient = jax.value_and_grad(
    lambda x: drop(x, rows, columns, 0.3).sum()
  )(x)
  np.testing.assert_allclose((gradient * x).sum(), value, rtol=1e-6)
  np.testing.assert_array_equal(gradient == 0, drop(x, rows, columns, 0.3) == 0)
