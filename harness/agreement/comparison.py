"""Compares values that two systems compute, with limits."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

# Limits for values, losses and gradients in float32.
MAX_DIFFERENCE = 1e-4
MAX_RELATIVE_DIFFERENCE = 1e-5
MAX_COSINE_DISTANCE = 1e-4
_MAX_LENGTH_DIFFERENCE = 1e-3
# Share of the whole gradient's norm that a zero gradient can get by rounding.
_ROUNDING = 2e-7


class Row(NamedTuple):
  """Result of one comparison.

  Attributes:
    what: Description of what was compared.
    measure: Name of the measure.
    value: Measured value.
    limit: Largest value that passes.
    note: Additional remarks.
  """

  what: str
  measure: str
  value: float
  limit: float
  note: str = ""

  @property
  def passed(self) -> bool:
    """Whether the value is within the limit; NaN never is."""
    return bool(self.value <= self.limit)

  def __str__(self) -> str:
    return (
      f"{'ok' if self.passed else 'FAILED':<7}{self.what}: {self.measure} "
      f"{self.value:.3g} (≤ {self.limit:g}) {self.note}"
    )


def differences(
  what: str, ours: np.ndarray, theirs: np.ndarray, limit: float = MAX_DIFFERENCE
) -> Row:
  """Compares two arrays of equal shape by their largest absolute difference."""
  assert np.shape(ours) == np.shape(theirs), what
  difference = np.abs(np.float64(ours) - np.float64(theirs)).max()
  return Row(what, "max abs difference", float(difference), limit)


def relative(what: str, ours: float, theirs: np.ndarray) -> Row:
  """Compares two losses by their difference, relative to the second one."""
  difference = abs(float(ours) - float(theirs)) / abs(float(theirs))
  return Row(what, "relative difference", difference, MAX_RELATIVE_DIFFERENCE)


def unequal(what: str, ours: np.ndarray, theirs: np.ndarray) -> Row:
  """Counts the elements in which two arrays of equal shape differ."""
  assert np.shape(ours) == np.shape(theirs), what
  count = int(np.sum(np.asarray(ours) != np.asarray(theirs)))
  return Row(what, "unequal", count, 0, f"of {np.size(theirs)}")


def gradient_cosines(
  what: str,
  ours: Mapping[str, np.ndarray],
  theirs: Mapping[str, np.ndarray],
  *,
  without: tuple[str, ...] = (),
) -> Row:
  """Compares two gradients of the same parameters by the worst cosine.

  Args:
    what: Description of the model.
    ours: Our gradient, by path of the parameter.
    theirs: The other system's gradient, for the parameters that it uses.
    without: Suffixes of paths of parameters that add the same value to all
      scores of a softmax. Their gradient is only a rounding error, whose
      direction cannot be compared.

  Returns:
    The row. Its value is infinite if the norms of two gradients differ, if a
    parameter has a gradient that should have none, or if the other system does
    not use it.
  """
  norms = {path: np.linalg.norm(np.float64(g)) for path, g in theirs.items()}
  rounding = _ROUNDING * np.linalg.norm([*norms.values()])
  wrong = [p for p in ours.keys() - theirs.keys() if ours[p].any()]
  distances = {}
  for path, their in theirs.items():
    our = np.float64(ours[path])
    assert our.shape == their.shape, path
    norm = np.linalg.norm(our)
    if path.endswith(without):
      is_right = max(norm, norms[path]) <= rounding
    else:
      product = np.vdot(our, np.float64(their))
      distances[path] = float(1 - product / (norm * norms[path]))
      is_right = abs(norm / norms[path] - 1) <= _MAX_LENGTH_DIFFERENCE
    if not is_right:
      wrong.append(path)
  worst = max(distances, key=lambda path: distances[path])
  value = np.inf if wrong else distances[worst]
  note = f"the worst of {len(distances)} parameters: {worst}"
  if wrong:
    note = f"of another length, or without a gradient: {', '.join(wrong)}"
  return Row(what, "1 − cosine", value, MAX_COSINE_DISTANCE, note)
