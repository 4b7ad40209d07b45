"""Leaves: k-means near its optimum."""

import numpy as np
import pytest

from realm_jax.indexes.scann.partitions import assign, train_leaves
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


def test_the_same_sample_gives_the_same_leaves():
  vectors = clustered(2_000, 1)
  np.testing.assert_array_equal(
    train_leaves(vectors, 40), train_leaves(vectors, 40)
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
