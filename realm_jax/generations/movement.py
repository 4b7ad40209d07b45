"""How far vectors are thought to have moved, from a sample that was embedded.

Vectors that lie together move alike: a block's movement is the mean of that of
the sampled blocks nearest to it.
"""

import numpy as np
from jaxtyping import Float

_NEIGHBOURS = 8
# Scores in memory at a time.
_ROWS_AT_ONCE = 4096


class Movement:
  """Predicts how far vectors moved.

  Args:
    vectors: of the sample, as they are stored.
    moved: how far each is from what it would be.
  """

  def __init__(
    self, vectors: Float[np.ndarray, "s d"], moved: Float[np.ndarray, " s"]
  ):
    self._vectors = vectors
    self._squares = np.sum(vectors**2, axis=1)
    self._moved = moved

  def __call__(
    self, vectors: Float[np.ndarray, "n d"]
  ) -> Float[np.ndarray, " n"]:
    """The distances predicted for stored vectors."""
    count = min(_NEIGHBOURS, len(self._moved))
    if not count:
      return np.ones(len(vectors))
    predicted = np.empty(len(vectors))
    for start in range(0, len(vectors), _ROWS_AT_ONCE):
      part = vectors[start : start + _ROWS_AT_ONCE]
      distances = self._squares[None] - 2 * part @ self._vectors.T
      nearest = np.argpartition(distances, count - 1, axis=1)[:, :count]
      predicted[start : start + len(part)] = self._moved[nearest].mean(axis=1)
    return predicted
