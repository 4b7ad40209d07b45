"""The affine map from stored vectors to new ones."""

import numpy as np

from realm_jax.generations.building import drift


def _pairs(count, *, noise, seed=0, dim=8):
  rng = np.random.default_rng(seed)
  old = rng.standard_normal((count, dim)) + 3
  weight = np.eye(dim) + 0.2 * rng.standard_normal((dim, dim))
  new = old @ weight + 0.5
  new += noise * rng.standard_normal(new.shape)
  return old.astype(np.float32), new.astype(np.float32)


def test_an_affine_motion_is_undone():
  old, new = _pairs(600, noise=0.0)
  found = drift.fit(old[:400], new[:400])
  assert found.record.is_used and found.record.pairs == 400
  left = np.mean(np.sum((found(old[400:]) - new[400:]) ** 2, axis=1))
  moved = np.mean(np.sum((old[400:] - new[400:]) ** 2, axis=1))
  assert left < 0.01 * moved
  # What it says of itself is of pairs that it has not seen.
  assert 0.2 * left < found.record.corrected < 5 * left
  assert found(old).dtype == np.float32


def test_what_is_no_help_is_not_used():
  rng = np.random.default_rng(0)
  old = rng.standard_normal((100, 8)).astype(np.float32)
  new = (old + 0.1 * rng.standard_normal(old.shape)).astype(np.float32)
  found = drift.fit(old, new)
  assert not found.record.is_used
  assert found.record.corrected == found.record.stored
  assert found(old) is old


def test_from_few_pairs_at_most_a_shift_is_learnt():
  rng = np.random.default_rng(0)
  old = rng.standard_normal((25, 64)).astype(np.float32)
  found = drift.fit(old, old + np.float32(0.5))
  assert found.record.is_used
  np.testing.assert_allclose(found(old), old + 0.5, atol=0.05)
  few = drift.fit(old[:10], old[:10] + np.float32(0.5))
  assert not few.record.is_used


def test_unit_vectors_stay_so():
  old, new = (
    x / np.linalg.norm(x, axis=1, keepdims=True)
    for x in _pairs(300, noise=0.05)
  )
  moved = drift.fit(old, new, normalize=True)(old)
  np.testing.assert_allclose(np.linalg.norm(moved, axis=1), 1.0, atol=1e-5)


def test_it_is_off_where_it_is_not_allowed():
  found = drift.fit(*_pairs(100, noise=0.0), identity_only=True)
  assert not found.record.is_used
