"""Codes: the nearest centroids, and those that keep inner products."""

import itertools

import jax.numpy as jnp
import numpy as np

from realm_jax.indexes.scann import product_codes
from realm_jax.indexes.scann.product_codes import (
  train_codebooks,
)


def _on_device(*arrays):
  return [jnp.asarray(array) for array in arrays]


def encode(*arrays, **settings):
  return product_codes.encode(*_on_device(*arrays), **settings)


def decode(*arrays):
  return product_codes.decode(*_on_device(*arrays))


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


def test_anisotropic_codes_keep_inner_products():
  residuals = _residuals()
  vectors = residuals + _residuals(seed=1)
  unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
  codebooks = train_codebooks(residuals, dims_per_code=2)
  weight = 3.0

  def errors(codes):
    away = residuals - np.asarray(decode(codes, codebooks))
    along = (away * unit).sum(axis=1)
    return np.square(along).mean(), (
      np.square(away).sum(axis=1) + weight * np.square(along)
    )

  plain_along, plain = errors(encode(residuals, codebooks))
  codes = encode(residuals, codebooks, unit, weight=weight)
  along, loss = errors(codes)
  assert along < 0.5 * plain_along
  assert (loss <= plain + 1e-4).all()
  # Nearly always the best codes of all.
  best = np.full(50, np.inf)
  for every in itertools.product(range(16), repeat=2):
    some = np.array(codes)[:50]
    some[:, :2] = every
    away = residuals[:50] - np.asarray(decode(some, codebooks))
    total = np.square(away).sum(axis=1)
    best = np.minimum(best, total + weight * ((away * unit[:50]).sum(1) ** 2))
  assert np.mean(loss[:50] <= best + 1e-4) > 0.6
