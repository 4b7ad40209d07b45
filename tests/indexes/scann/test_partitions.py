"""Leaves: near the best k-means, and second ones by SOAR's rule."""

import numpy as np
import pytest

from realm_jax.indexes.scann.partitions import (
  anisotropic_centres,
  assign,
  assign_spilled,
  train_leaves,
)
from tests.indexes.clustered import clustered


def _distortion(vectors, centres):
  leaves = np.asarray(assign(vectors, centres))
  return np.square(vectors - centres[leaves]).sum(axis=1).mean()


def _assert_about_best(scores, chosen, scale):
  """The best columns, but for what bfloat16 cannot tell apart."""
  scores, rows = np.asarray(scores), np.arange(len(scores))
  short = scores.max(axis=1) - scores[rows, np.asarray(chosen)]
  assert (short <= 2**-7 * scale).all()
  assert np.mean(short > 0) < 0.05


def test_every_group_gets_a_leaf_of_its_own():
  # From random starts, Lloyd's algorithm alone joins about a third of them.
  vectors = clustered(8_000, 1, groups=100)
  centres = train_leaves(vectors, 100)
  groups = np.random.default_rng(0).standard_normal((100, 32))
  nearest = np.square(groups[:, None] - centres).sum(axis=2).min(axis=1)
  assert nearest.max() < 0.5
  assert _distortion(vectors, centres) < 1.02 * 0.49 * 32


def test_the_same_sample_gives_the_same_leaves():
  vectors = clustered(2_000, 1)
  np.testing.assert_array_equal(
    train_leaves(vectors, 40), train_leaves(vectors, 40)
  )


def test_spherical_leaves_have_length_one_and_go_by_direction():
  vectors = clustered(2_000, 1) * np.linspace(0.1, 10, 2_000)[:, None]
  centres = train_leaves(vectors.astype(np.float32), 30, spherical=True)
  np.testing.assert_allclose(np.linalg.norm(centres, axis=1), 1, rtol=1e-5)
  leaves = assign(vectors.astype(np.float32), centres, spherical=True)
  _assert_about_best(
    vectors @ centres.T, leaves, np.linalg.norm(vectors, axis=1)
  )


@pytest.mark.parametrize("num_leaves", [1, 5, 64, 130])
@pytest.mark.parametrize("count", [1, 7, 300])
def test_each_vector_goes_to_the_nearest_centre(count, num_leaves):
  vectors, centres = clustered(count, 1), clustered(num_leaves, 2)
  distances = np.square(vectors[:, None] - centres).sum(axis=2)
  lengths = (
    np.linalg.norm(vectors, axis=1) * np.linalg.norm(centres, axis=1).max()
  )
  _assert_about_best(-distances, assign(vectors, centres), lengths)


def test_of_equal_centres_the_first_is_taken():
  centres = np.zeros((200, 4), np.float32)
  centres[150:] = 1
  leaves = np.asarray(assign(np.ones((3, 4), np.float32), centres))
  np.testing.assert_array_equal(leaves, 150)


def test_second_leaves_are_those_of_soars_loss():
  vectors, centres = clustered(50, 1), clustered(20, 2)
  first = np.asarray(assign(vectors, centres))
  residual = vectors - centres[first]
  residual /= np.linalg.norm(residual, axis=1, keepdims=True)
  away = vectors[:, None] - centres
  along = np.einsum("bld,bd->bl", away, residual)
  loss = np.square(away).sum(axis=2) + 1.5 * np.square(along)
  loss[np.arange(50), first] = np.inf
  second = assign_spilled(vectors, centres, first, 1.5)
  lengths = np.square(np.linalg.norm(vectors, axis=1))
  _assert_about_best(-loss, second, lengths)


def test_anisotropic_centres_minimise_their_loss():
  vectors, weight = clustered(400, 1), 3.0
  means = train_leaves(vectors, 8)
  leaves = np.asarray(assign(vectors, means))
  centres = anisotropic_centres(vectors, leaves, means, weight)
  unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

  def loss(centres):
    away = vectors - centres[leaves]
    along = (away * unit).sum(axis=1)
    return np.square(away).sum() + weight * np.square(along).sum()

  best = loss(centres)
  assert best < loss(means)
  rng = np.random.default_rng(0)
  for _ in range(5):
    assert best < loss(centres + 1e-2 * rng.standard_normal(centres.shape))


def test_more_leaves_than_vectors_are_refused():
  with pytest.raises(ValueError, match="5 vectors cannot train 6 leaves"):
    train_leaves(clustered(5, 1), 6)
