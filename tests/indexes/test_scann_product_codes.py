"""Codes: the nearest centroids."""

import jax.numpy as jnp
import numpy as np

from realm_jax.indexes.scann import product_codes
from realm_jax.indexes.scann.product_codes import train_codebooks


def encode(residuals, codebooks):
  return np.asarray(
    product_codes.encode(jnp.asarray(residuals), jnp.asarray(codebooks))
  )


def decode(codes, codebooks):
  pieces = np.asarray(codebooks)[np.arange(codes.shape[1]), codes]
  return pieces.reshape(len(codes), -1)


def _residuals(count=3_000, dim=8, seed=0):
  rng = np.random.default_rng(seed)
  return rng.standard_normal((count, dim)).astype(np.float32)


def test_codes_are_the_nearest_centroids():
  residuals = _residuals(500)
  codebooks = np.asarray(train_codebooks(residuals, dims_per_code=2))
  assert codebooks.shape == (4, 16, 2)
  pieces = residuals.reshape(500, 4, 1, 2)
  nearest = np.square(pieces - codebooks).sum(axis=3).argmin(axis=2)
  codes = encode(residuals, codebooks)
  np.testing.assert_array_equal(codes, nearest)
  np.testing.assert_allclose(
    decode(codes, codebooks),
    codebooks[np.arange(4), nearest].reshape(500, 8),
  )


def test_codebooks_are_as_good_as_sixteen_centroids_can_be():
  residuals = _residuals()
  codebooks = train_codebooks(residuals, dims_per_code=2)
  error = residuals - decode(encode(residuals, codebooks), codebooks)
  # The best 16 centroids of a normal in the plane leave 0.11 of a dimension.
  assert np.square(error).mean() < 0.125
