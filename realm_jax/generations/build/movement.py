"""How far vectors are thought to have moved, from a sample that was embedded.

A linear function of the stored vector and its age, regularised: on the demo's
run it ranked the movements of other blocks better than the sampled blocks
nearest to them did, or the mean of their cluster.
"""

import numpy as np
from jaxtyping import Float, Int

# Of the mean variance of a feature.
_RIDGE = 1.0
# Nothing is thought to move less than this part of the mean.
_LEAST = 0.1
_TINY = 1e-30


class Movement:
  """Predicts how far vectors moved.

  Args:
    vectors: of the sample, as they are stored.
    ages: of those, in steps.
    moved: how far each is from what it would be.
  """

  def __init__(
    self,
    vectors: Float[np.ndarray, "s d"],
    ages: Int[np.ndarray, " s"],
    moved: Float[np.ndarray, " s"],
  ):
    self._weight: np.ndarray | None = None
    if not len(moved):
      return
    self._mean = float(moved.mean())
    self._age_scale = 1.0 / (ages.std() + _TINY) if np.ptp(ages) else 0.0
    # As much as all dimensions of a vector together.
    self._age_scale *= np.sqrt(np.var(vectors, axis=0).sum())
    features = self._features(vectors, ages)
    self._center = features.mean(axis=0)
    centered = features - self._center
    scale = _RIDGE * np.mean(centered**2) * len(moved) + _TINY
    self._weight = np.linalg.solve(
      centered.T @ centered + scale * np.eye(centered.shape[1]),
      centered.T @ (moved - self._mean),
    )

  def _features(self, vectors: np.ndarray, ages: np.ndarray) -> np.ndarray:
    scaled = self._age_scale * ages[:, None]
    return np.concatenate([vectors, scaled], axis=1).astype(np.float64)

  def __call__(
    self, vectors: Float[np.ndarray, "n d"], ages: Int[np.ndarray, " n"]
  ) -> Float[np.ndarray, " n"]:
    """The distances predicted for stored vectors; without a sample, 1."""
    if self._weight is None:
      return np.ones(len(vectors))
    centered = self._features(vectors, ages) - self._center
    predicted = self._mean + centered @ self._weight
    return np.maximum(predicted, _LEAST * self._mean)
