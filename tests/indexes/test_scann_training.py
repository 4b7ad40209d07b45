"""What ScaNN's tree is trained to: leaves and codes near their optimum."""

import jax.numpy as jnp
import numpy as np
import pytest

from realm_jax.indexes.scann.training import (
  assign,
  encode,
  train_codebooks,
  train_leaves,
)
from tests.indexes.clustered import clustered


def _distortion(vectors, centroids):
  leaves = np.asarray(assign(vectors, centroids))
  return np.square(vectors - centroids[leaves]).sum(axis=1).mean()


def test_every_group_gets_a_leaf_of_its_own():
  # From random starts, Lloyd's algorithm alone joins about a third of them.
  vectors = clustered(8_000, 1, groups=100)
  centroids = train_leaves(vectors, 100)
  groups = np.random.default_rng(0).standard_normal((100, 32))
  nearest = np.square(groups[:, None] - centroids).sum(axis=2).min(axis=1)
  assert nearest.max() < 0.5
  assert _distortion(vectors, centroids) < 1.02 * 0.49 * 32


@pytest.mark.parametrize(
  ("count", "num_leaves"), [(7, 1), (300, 64), (300, 130)]
)
def test_each_vector_goes_to_the_nearest_centroid(count, num_leaves):
  vectors, centroids = clustered(count, 1), clustered(num_leaves, 2)
  distances = np.square(vectors[:, None] - centroids).sum(axis=2)
  lengths = (
    np.linalg.norm(vectors, axis=1) * np.linalg.norm(centroids, axis=1).max()
  )
  chosen = distances[np.arange(count), assign(vectors, centroids)]
  more = chosen - distances.min(axis=1)
  # bfloat16 cannot tell all of them apart.
  assert (more <= 2**-7 * lengths).all() and np.mean(more > 0) < 0.05


def test_codebooks_are_as_good_as_sixteen_centroids_can_be():
  rng = np.random.default_rng(0)
  residuals = rng.standard_normal((3_000, 8)).astype(np.float32)
  codebooks = train_codebooks(residuals, dims_per_code=2)
  codes = encode(jnp.asarray(residuals), codebooks)
  pieces = residuals.reshape(-1, 4, 1, 2)
  distances = np.square(pieces - np.asarray(codebooks)).sum(axis=3)
  np.testing.assert_array_equal(codes, distances.argmin(axis=2))
  # The best 16 centroids of a normal in the plane leave 0.11 of a dimension.
  assert distances.min(axis=2).mean() / 2 < 0.125
