"""Leaves: k-means near its optimum, and SOAR's second leaves."""

import numpy as np
import pytest

from realm_jax.indexes.scann.partitions import (
  anisotropic_centroids,
  assign,
  assign_spilled,
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


def test_spherical_leaves_have_length_one_and_go_by_direction():
  vectors = clustered(2_000, 1) * np.linspace(0.1, 10, 2_000)[:, None]
  centroids = train_leaves(vectors.astype(np.float32), 30, spherical=True)
  np.testing.assert_allclose(np.linalg.norm(centroids, axis=1), 1, rtol=1e-5)
  leaves = assign(vectors.astype(np.float32), centroids, spherical=True)
  _assert_about_best(
    vectors @ centroids.T, leaves, np.linalg.norm(vectors, axis=1)
  )


@pytest.mark.parametrize("num_leaves", [1, 5, 64, 130])
@pytest.mark.parametrize("count", [1, 7, 300])
def test_each_vector_goes_to_the_nearest_centroid(count, num_leaves):
  vectors, centroids = clustered(count, 1), clustered(num_leaves, 2)
  distances = np.square(vectors[:, None] - centroids).sum(axis=2)
  lengths = (
    np.linalg.norm(vectors, axis=1) * np.linalg.norm(centroids, axis=1).max()
  )
  _assert_about_best(-distances, assign(vectors, centroids), lengths)


def test_second_leaves_are_those_of_soars_loss():
  vectors, centroids = clustered(50, 1), clustered(20, 2)
  first = np.asarray(assign(vectors, centroids))
  residual = vectors - centroids[first]
  residual /= np.linalg.norm(residual, axis=1, keepdims=True)
  away = vectors[:, None] - centroids
  along = np.einsum("bld,bd->bl", away, residual)
  loss = np.square(away).sum(axis=2) + 1.5 * np.square(along)
  loss[np.arange(50), first] = np.inf
  second = assign_spilled(vectors, centroids, first, 1.5)
  lengths = np.square(np.linalg.norm(vectors, axis=1))
  _assert_about_best(-loss, second, lengths)


def test_anisotropic_centroids_minimise_their_loss():
  vectors, weight = clustered(400, 1), 3.0
  means = train_leaves(vectors, 8)
  leaves = np.asarray(assign(vectors, means))
  centroids = anisotropic_centroids(vectors, leaves, means, weight)
  unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

  def loss(centroids):
    away = vectors - centroids[leaves]
    along = (away * unit).sum(axis=1)
    return np.square(away).sum() + weight * np.square(along).sum()

  best = loss(centroids)
  assert best < loss(means)
  rng = np.random.default_rng(0)
  for _ in range(5):
    assert best < loss(centroids + 1e-2 * rng.standard_normal(centroids.shape))
