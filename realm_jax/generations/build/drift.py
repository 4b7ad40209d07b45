"""How stored vectors have drifted: an affine map from old to new, if it helps.

Between two checkpoints much of what moves a vector moves all of them alike.
From pairs of a sample, stored and embedded anew, a ridge-regularised affine map
is fitted, and applied to the vectors that are not embedded anew. It is used
where pairs that were left out of the fit say that it helps.
"""

import dataclasses

import numpy as np
from jaxtyping import Float

_FOLDS = 5
_FEWEST_PAIRS = 20
# Of the mean variance of a dimension; infinity leaves a shift.
_RIDGES = (0.01, 0.1, 1.0, 10.0, 100.0, np.inf)
# A map has to be better by more than chance might make it.
_WORTHWHILE = 0.98
# Added to no variance, where all vectors are one.
_TINY = 1e-30


@dataclasses.dataclass(frozen=True)
class Drift:
  """x + (x − center) · weight + shift; the identity where it does not help.

  Attributes:
    center: the mean of the old vectors.
    weight: [d, d].
    shift: of the mean.
    stored_error: the mean squared distance of stored vectors from new ones …
    error: … and of those that this gives, on pairs left out of the fit.
    pairs: how many it was fitted on.
    left: the distance of each of them, fitted without it, from where it is.
    is_used: whether it is better than the identity.
    normalize: whether what it gives is scaled to length 1.
  """

  center: Float[np.ndarray, " d"]
  weight: Float[np.ndarray, "d d"]
  shift: Float[np.ndarray, " d"]
  stored_error: float
  error: float
  pairs: int
  left: Float[np.ndarray, " n"]
  is_used: bool
  normalize: bool

  def __call__(
    self, vectors: Float[np.ndarray, "n d"]
  ) -> Float[np.ndarray, "n d"]:
    """The vectors as the new checkpoint might have them, in float32."""
    if not self.is_used:
      return vectors
    moved = vectors + (vectors - self.center[None]) @ self.weight
    moved += self.shift[None]
    if self.normalize:
      moved /= np.linalg.norm(moved, axis=1, keepdims=True) + _TINY
    return moved.astype(np.float32)


def fit(
  old: Float[np.ndarray, "n d"],
  new: Float[np.ndarray, "n d"],
  *,
  normalize: bool = False,
  allowed: bool = True,
) -> Drift:
  """The map from old vectors to new ones.

  The ridge is the one that does best on pairs left out.

  Args:
    old: as they are stored.
    new: of the same blocks, embedded anew.
    normalize: whether vectors have length 1.
    allowed: whether anything but the identity may come of it.
  """
  dim = old.shape[1]
  squares = np.sum((new - old) ** 2, axis=1)
  moved = float(squares.mean()) if len(old) else 0.0
  identity = Drift(
    center=np.zeros(dim, np.float32),
    weight=np.zeros((dim, dim), np.float32),
    shift=np.zeros(dim, np.float32),
    stored_error=moved,
    error=moved,
    pairs=len(old),
    left=np.sqrt(squares),
    is_used=False,
    normalize=normalize,
  )
  if not allowed or len(old) < _FEWEST_PAIRS:
    return identity
  errors = np.zeros((len(_RIDGES), len(old)))
  fold = np.arange(len(old)) % _FOLDS
  for left_out in range(_FOLDS):
    inside, outside = fold != left_out, fold == left_out
    for i, (center, weight, shift) in enumerate(
      _maps(old[inside], new[inside])
    ):
      candidate = dataclasses.replace(
        identity, center=center, weight=weight, shift=shift, is_used=True
      )
      gone = candidate(old[outside]) - new[outside]
      errors[i, outside] = np.sum(gone**2, axis=1)
  best = int(np.argmin(errors.mean(axis=1)))
  error = float(errors[best].mean())
  if not error < _WORTHWHILE * moved:
    return identity
  center, weight, shift = _maps(old, new)[best]
  return dataclasses.replace(
    identity,
    center=center.astype(np.float32),
    weight=weight.astype(np.float32),
    shift=shift.astype(np.float32),
    error=error,
    left=np.sqrt(errors[best]),
    is_used=True,
  )


def _maps(
  old: np.ndarray, new: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
  """Center, weight and shift for each of the ridges."""
  old, change = old.astype(np.float64), (new - old).astype(np.float64)
  center, shift = old.mean(axis=0), change.mean(axis=0)
  centered = old - center
  covariance = centered.T @ centered / len(old)
  values, vectors = np.linalg.eigh(covariance)
  values = np.maximum(values, 0.0)
  with_change = vectors.T @ (centered.T @ (change - shift)) / len(old)
  scale = values.mean() + _TINY
  maps = []
  for ridge in _RIDGES:
    factor = 1.0 / (values + ridge * scale)
    maps.append((center, vectors @ (factor[:, None] * with_change), shift))
  return maps
