"""Drift correction: affine maps from stored vectors to current ones.

Much of what changes a vector between two checkpoints changes all vectors
alike. A sample of blocks is embedded again, and a ridge-regularised affine map
from their stored vectors to the new ones is fitted by cross-validation. It is
applied to the vectors that are copied, where held-out pairs show that it helps.
"""

import dataclasses

import numpy as np
from jaxtyping import Float, Int

_FOLDS = 5
_MIN_PAIRS = 20
# Multiples of the mean variance of a dimension; infinity leaves only a shift.
_RIDGES = (0.01, 0.1, 1.0, 10.0, 100.0, np.inf)
# A map is used only if its error is lower by more than chance may make it.
_MAX_ERROR_RATIO = 0.98
# A group of ages has a map of its own only if enough pairs are of these ages.
_MAX_GROUPS = 8
_MIN_PAIRS_PER_DIMENSION = 4
# Keeps divisions finite where all vectors are equal.
_TINY = 1e-30


@dataclasses.dataclass(frozen=True)
class DriftMap:
  """The map x + (x − center) · weight + shift, or the identity if not used.

  Attributes:
    center: Mean of the stored vectors that it was fitted on.
    weight: Matrix of the linear part of the change.
    shift: Mean of the change.
    pairs: Number of pairs that it was fitted on.
    stored_error: Mean squared distance from stored to re-embedded vectors.
    error: The same distance after the map, on pairs left out of the fit.
    is_used: Whether the map is better than the identity.
    normalize: Whether mapped vectors are scaled to length 1.
  """

  center: Float[np.ndarray, " d"]
  weight: Float[np.ndarray, "d d"]
  shift: Float[np.ndarray, " d"]
  pairs: int
  stored_error: float
  error: float
  is_used: bool
  normalize: bool

  def __call__(
    self, vectors: Float[np.ndarray, "n d"]
  ) -> Float[np.ndarray, "n d"]:
    """Predicts the vectors of the new checkpoint, in float32."""
    if not self.is_used:
      return vectors
    mapped = vectors + (vectors - self.center[None]) @ self.weight
    mapped += self.shift[None]
    if self.normalize:
      mapped /= np.linalg.norm(mapped, axis=1, keepdims=True) + _TINY
    return mapped.astype(np.float32)


@dataclasses.dataclass(frozen=True)
class DriftCorrection:
  """Drift maps for stored vectors of several ages.

  Attributes:
    maps: A map for each group of ages, in rising order of checkpoint steps,
      with the last step of its group.
  """

  maps: tuple[tuple[int, DriftMap], ...] = ()

  @property
  def pairs(self) -> int:
    """The number of pairs that all maps were fitted on."""
    return sum(one.pairs for _, one in self.maps)

  @property
  def error(self) -> float:
    """The mean squared distance that remains, on pairs left out of the fits."""
    total = sum(one.error * one.pairs for _, one in self.maps)
    return total / max(self.pairs, 1)

  def __call__(
    self, vectors: Float[np.ndarray, "n d"], steps: Int[np.ndarray, " n"]
  ) -> Float[np.ndarray, "n d"]:
    """Maps vectors by the checkpoint steps they were embedded with."""
    if not self.maps:
      return vectors
    group = np.searchsorted([last for last, _ in self.maps], steps)
    mapped = np.empty_like(vectors)
    for i, (_, one) in enumerate(self.maps):
      mapped[group == i] = one(vectors[group == i])
    return mapped


def fit_by_age(
  old: Float[np.ndarray, "n d"],
  new: Float[np.ndarray, "n d"],
  steps: Int[np.ndarray, " n"],
  *,
  normalize: bool,
  identity_only: bool = False,
) -> DriftCorrection:
  """Fits a map for each age, or for neighbouring ages where pairs are few.

  The `steps` are those that the old vectors were embedded with; see `fit`.
  """
  if not len(steps):
    return DriftCorrection()
  enough = max(
    _MIN_PAIRS_PER_DIMENSION * old.shape[1], len(steps) // _MAX_GROUPS
  )
  ends, waiting = [], 0
  ages, counts = np.unique(steps, return_counts=True)
  for age, count in zip(ages.tolist(), counts.tolist(), strict=True):
    waiting += count
    if waiting >= enough:
      ends.append(age)
      waiting = 0
  # The last group also takes the remaining pairs, and every stored vector that
  # is younger than all pairs.
  ends = [*ends[:-1], np.iinfo(np.int32).max]
  maps, begin = [], np.iinfo(np.int32).min
  for end in ends:
    group = (steps > begin) & (steps <= end)
    one = fit(
      old[group], new[group], normalize=normalize, identity_only=identity_only
    )
    maps.append((end, one))
    begin = end
  return DriftCorrection(tuple(maps))


def fit(
  old: Float[np.ndarray, "n d"],
  new: Float[np.ndarray, "n d"],
  *,
  normalize: bool = False,
  identity_only: bool = False,
) -> DriftMap:
  """Fits the map from old vectors to new ones.

  Args:
    old: Stored vectors.
    new: Re-embedded vectors of the same blocks.
    normalize: Whether vectors have length 1.
    identity_only: Whether errors are measured without fitting a map.

  Returns:
    The map of the ridge with the lowest cross-validated error, or the identity
    where pairs are few or no map is clearly better.
  """
  dim = old.shape[1]
  change = float(np.sum((new - old) ** 2, axis=1).mean()) if len(old) else 0.0
  identity = DriftMap(
    center=np.zeros(dim, np.float32),
    weight=np.zeros((dim, dim), np.float32),
    shift=np.zeros(dim, np.float32),
    pairs=len(old),
    stored_error=change,
    error=change,
    is_used=False,
    normalize=normalize,
  )
  if identity_only or len(old) < _MIN_PAIRS:
    return identity
  squares = np.zeros((len(_RIDGES), len(old)))
  fold = np.arange(len(old)) % _FOLDS
  for left_out in range(_FOLDS):
    inside, outside = fold != left_out, fold == left_out
    for i, (center, weight, shift) in enumerate(
      _ridge_maps(old[inside], new[inside])
    ):
      candidate = dataclasses.replace(
        identity, center=center, weight=weight, shift=shift, is_used=True
      )
      residual = candidate(old[outside]) - new[outside]
      squares[i, outside] = np.sum(residual**2, axis=1)
  errors = squares.mean(axis=1)
  best = int(np.argmin(errors))
  if not errors[best] < _MAX_ERROR_RATIO * change:
    return identity
  center, weight, shift = _ridge_maps(old, new)[best]
  return dataclasses.replace(
    identity,
    center=center.astype(np.float32),
    weight=weight.astype(np.float32),
    shift=shift.astype(np.float32),
    error=float(errors[best]),
    is_used=True,
  )


def _ridge_maps(
  old: np.ndarray, new: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
  """Returns center, weight and shift for each ridge."""
  old, change = old.astype(np.float64), (new - old).astype(np.float64)
  center, shift = old.mean(axis=0), change.mean(axis=0)
  centered = old - center
  covariance = centered.T @ centered / len(old)
  values, vectors = np.linalg.eigh(covariance)
  values = np.maximum(values, 0.0)
  with_change = vectors.T @ (centered.T @ (change - shift)) / len(old)
  scale = values.mean() + _TINY
  return [
    (
      center,
      vectors @ ((1.0 / (values + ridge * scale))[:, None] * with_change),
      shift,
    )
    for ridge in _RIDGES
  ]
