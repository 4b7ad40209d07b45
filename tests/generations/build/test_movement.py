"""How far vectors moved, told from a sample of them."""

import numpy as np

from realm_jax.generations.build.movement import Movement


def test_what_moves_by_place_and_by_age_is_told_apart():
  rng = np.random.default_rng(0)
  vectors = rng.standard_normal((600, 8)).astype(np.float32)
  ages = rng.choice([10, 30], 600)
  moved = 1.0 + 0.2 * vectors[:, 0] + 0.02 * ages
  found = Movement(vectors[:200], ages[:200], moved[:200])
  predicted = found(vectors[200:], ages[200:])
  assert np.corrcoef(predicted, moved[200:])[0, 1] > 0.9
  same = np.zeros((2, 8), np.float32)
  young, old = found(same, np.array([10, 30]))
  assert old > young + 0.1


def test_of_one_age_and_without_a_sample():
  vectors = np.ones((5, 8), np.float32)
  ages = np.full(5, 10)
  found = Movement(vectors, ages, np.full(5, 2.0))
  np.testing.assert_allclose(found(vectors, ages), 2.0)
  nothing = Movement(vectors[:0], ages[:0], np.zeros(0))
  np.testing.assert_array_equal(nothing(vectors, ages), 1.0)
