"""What ScaNN's tree is trained to: leaves and codes near their optimum."""

import jax.numpy as jnp
import numpy as np
import pytest

from realm_jax.indexes.scann import training
from realm_jax.indexes.scann.training import (
  assign,
  train_codebooks,
  train_leaves,
)
from tests.indexes.clustered import clustered


def _distortion(vectors, centroids):
  leaves = np.asarray(assign(vectors, centroids))
  return np.square(vectors - centroids[leaves]).sum(axis=1).mean()


def _assert_about_best(scores, chosen, scale):
  """The best columns, but for what bfloat16 cannot tell apart."""
  scores, rows = np.asarray(scores), np.arange(len(scores))
  short = scores.max(axis=1) - scores[rows, np.asarray(chosen)]
  assert (short <= 2**-7 * scale).all()
  assert np.mean(short > 0) < 0.05


def test_every_group_gets_a_leaf_of_its_own():
  # From random starts, Lloyd's algorithm alone joins about a third of them.
  vectors = clustered(8_000, 1, groups=100)
  centroids = train_leaves(vectors, 100)
  groups = np.random.default_rng(0).standard_normal((100, 32))
  nearest = np.square(groups[:, None] - centroids).sum(axis=2).min(axis=1)
  assert nearest.max() < 0.5
  assert _distortion(vectors, centroids) < 1.02 * 0.49 * 32


@pytest.mark.parametrize(
  ("count", "num_leaves"), [(1, 5), (7, 1), (300, 64), (300, 130)]
)
def test_each_vector_goes_to_the_nearest_centroid(count, num_leaves):
  vectors, centroids = clustered(count, 1), clustered(num_leaves, 2)
  distances = np.square(vectors[:, None] - centroids).sum(axis=2)
  lengths = (
    np.linalg.norm(vectors, axis=1) * np.linalg.norm(centroids, axis=1).max()
  )
  _assert_about_best(-distances, assign(vectors, centroids), lengths)


def encode(residuals, codebooks):
  return np.asarray(
    training.encode(jnp.asarray(residuals), jnp.asarray(codebooks))
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
