"""Drift correction: affine maps from stored vectors to current ones.

Much of what changes a vector between two checkpoints changes all vectors
alike. A sample of blocks is embedded again, and a ridge-regularised affine map
from their stored vectors to the new ones is fitted by cross-validation. It is
applied to the vectors that are copied, where held-out pairs show that it helps.
"""

import dataclasses

import numpy as np
from jaxtyping import Float, Int

from realm_jax.generations.store.manifest import DriftRecord

_FOLDS = 5
_MIN_PAIRS = 20
# Multiples of the mean variance of a dimension; infinity leaves only a shift.
_RIDGES = (0.01, 0.1, 1.0, 10.0, 100.0, np.inf)
# A map is used only if its error is lower by more than chance may make it.
_MAX_ERROR_RATIO = 0.98
# A group of ages has a map of its own only if enough pairs are of these ages.
_MAX_GROUPS = 8
_MIN_PAIRS_PER_DIMENSION = 4
_NO_LIMIT = int(np.iinfo(np.int32).max)
# Keeps divisions finite where all vectors are equal.
_TINY = 1e-30


@dataclasses.dataclass(frozen=True)
class DriftMap:
  """The map x + (x − center) · weight + shift, or the identity if not used.

  Attributes:
    center: Mean of the stored vectors that it was fitted on.
    weight: Matrix of the linear part of the change.
    shift: Mean of the change.
    normalize: Whether mapped vectors are scaled to length 1.
    record: Vectors that it is for, and whether it is better than the identity.
  """

  center: Float[np.ndarray, " d"]
  weight: Float[np.ndarray, "d d"]
  shift: Float[np.ndarray, " d"]
  normalize: bool
  record: DriftRecord

  def __call__(
    self, vectors: Float[np.ndarray, "n d"]
  ) -> Float[np.ndarray, "n d"]:
    """Predicts the vectors of the new checkpoint, in float32."""
    if not self.record.is_used:
      return vectors
    mapped = vectors + (vectors - self.center[None]) @ self.weight
    mapped += self.shift[None]
    if self.normalize:
      mapped /= np.linalg.norm(mapped, axis=1, keepdims=True) + _TINY
    return mapped.astype(np.float32)


@dataclasses.dataclass(frozen=True)
class DriftCorrection:
  """A map for each group of ages of stored vectors, by rising steps."""

  maps: tuple[DriftMap, ...] = ()

  @property
  def pairs(self) -> int:
    """The number of pairs that all maps were fitted on."""
    return sum(one.record.pairs for one in self.maps)

  @property
  def error(self) -> float:
    """The mean squared distance that remains, on pairs left out of the fits."""
    records = [one.record for one in self.maps]
    total = sum(record.corrected * record.pairs for record in records)
    return total / max(self.pairs, 1)

  def __call__(
    self, vectors: Float[np.ndarray, "n d"], steps: Int[np.ndarray, " n"]
  ) -> Float[np.ndarray, "n d"]:
    """Maps vectors by the checkpoint steps they were embedded with."""
    if not self.maps:
      return vectors
    ends = [one.record.until_step for one in self.maps]
    group = np.searchsorted(ends, steps)
    mapped = np.empty_like(vectors)
    for i, one in enumerate(self.maps):
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

  The `steps` are those that the old vectors were embedded with.
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
  ends = [*ends[:-1], _NO_LIMIT]
  maps, begin = [], np.iinfo(np.int32).min
  for end in ends:
    group = (steps > begin) & (steps <= end)
    maps.append(
      fit(
        old[group],
        new[group],
        normalize=normalize,
        identity_only=identity_only,
        until_step=end,
      )
    )
    begin = end
  return DriftCorrection(tuple(maps))


def fit(
  old: Float[np.ndarray, "n d"],
  new: Float[np.ndarray, "n d"],
  *,
  normalize: bool = False,
  identity_only: bool = False,
  until_step: int = _NO_LIMIT,
) -> DriftMap:
  """Fits the map from stored vectors to re-embedded ones of the same blocks.

  It is the one of the ridge with the lowest cross-validated error, or the
  identity where pairs are few or no map is clearly better. With `identity_only`
  errors are measured without fitting a map.
  """
  dim = old.shape[1]
  change = float(np.sum((new - old) ** 2, axis=1).mean()) if len(old) else 0.0
  identity = DriftMap(
    center=np.zeros(dim, np.float32),
    weight=np.zeros((dim, dim), np.float32),
    shift=np.zeros(dim, np.float32),
    normalize=normalize,
    record=DriftRecord(until_step, len(old), change, change, is_used=False),
  )
  if identity_only or len(old) < _MIN_PAIRS:
    return identity
  squares = np.zeros((len(_RIDGES), len(old)))
  fold = np.arange(len(old)) % _FOLDS
  for left_out in range(_FOLDS):
    inside, outside = fold != left_out, fold == left_out
    candidates = _ridge_maps(identity, old[inside], new[inside])
    for i, candidate in enumerate(candidates):
      residual = candidate(old[outside]) - new[outside]
      squares[i, outside] = np.sum(residual**2, axis=1)
  errors = squares.mean(axis=1)
  best = int(np.argmin(errors))
  if not errors[best] < _MAX_ERROR_RATIO * change:
    return identity
  fitted = _ridge_maps(identity, old, new)[best]
  return dataclasses.replace(
    fitted,
    center=fitted.center.astype(np.float32),
    weight=fitted.weight.astype(np.float32),
    shift=fitted.shift.astype(np.float32),
    record=dataclasses.replace(fitted.record, corrected=float(errors[best])),
  )


def _ridge_maps(
  identity: DriftMap, old: np.ndarray, new: np.ndarray
) -> list[DriftMap]:
  """Returns the map of each ridge, in float64."""
  old, change = old.astype(np.float64), (new - old).astype(np.float64)
  center, shift = old.mean(axis=0), change.mean(axis=0)
  centered = old - center
  values, vectors = np.linalg.eigh(centered.T @ centered / len(old))
  values = np.maximum(values, 0.0)
  with_change = vectors.T @ (centered.T @ (change - shift)) / len(old)
  scale = values.mean() + _TINY
  weights = (
    vectors @ ((1.0 / (values + ridge * scale))[:, None] * with_change)
    for ridge in _RIDGES
  )
  used = dataclasses.replace(identity.record, is_used=True)
  return [
    dataclasses.replace(
      identity, center=center, weight=weight, shift=shift, record=used
    )
    for weight in weights
  ]
