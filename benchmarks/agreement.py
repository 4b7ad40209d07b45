"""Rows that say how well two systems agree, and whether that is enough."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from realm_jax.files.json_file import JsonValue

# Of values, of losses, and of gradients, in float32.
MAX_DIFFERENCE = 1e-4
MAX_RELATIVE_DIFFERENCE = 1e-5
MIN_COSINE = 0.9999
_MAX_LENGTH_DIFFERENCE = 1e-3
# Of a model's gradient: what rounding alone makes of none.
_ROUNDING = 2e-7


@dataclasses.dataclass(frozen=True)
class Row:
  """One comparison.

  Attributes:
    what: was compared.
    measure: how, with its unit.
    value: found.
    limit: the worst value that passes.
    at_least: whether a higher value is better.
    note: what else there is to say.
  """

  what: str
  measure: str
  value: float
  limit: float
  at_least: bool = False
  note: str = ""

  @property
  def passed(self) -> bool:
    """Whether the value is within the limit; NaN never is."""
    return bool(
      self.value >= self.limit if self.at_least else self.value <= self.limit
    )


def differences(
  what: str,
  ours: np.ndarray,
  theirs: np.ndarray,
  *,
  limit: float = MAX_DIFFERENCE,
) -> Row:
  """The largest absolute difference of two arrays of one shape."""
  _require_shape(what, ours, theirs)
  found = np.abs(np.float64(ours) - np.float64(theirs)).max()
  return Row(what, "max abs difference", float(found), limit)


def relative(what: str, ours: float, theirs: float) -> Row:
  """The difference of two losses, in units of the second."""
  found = abs(float(ours) - float(theirs)) / abs(float(theirs))
  return Row(what, "relative difference", found, MAX_RELATIVE_DIFFERENCE)


def unequal(what: str, ours: np.ndarray, theirs: np.ndarray) -> Row:
  """How many elements of two arrays of one shape are not the same."""
  _require_shape(what, ours, theirs)
  count = int(np.sum(np.asarray(ours) != np.asarray(theirs)))
  note = f"of {np.size(theirs)}"
  return Row(what, "unequal", count, 0, note=note)


def gradient_cosines(
  what: str,
  ours: Mapping[str, np.ndarray],
  theirs: Mapping[str, np.ndarray],
  *,
  without: tuple[str, ...] = (),
) -> Row:
  """The worst cosine between two gradients of the same parameters.

  Args:
    what: of which model.
    ours: by the parameter's path.
    theirs: of the parameters that took part there.
    without: ends of the paths of parameters that add the same to all scores of
      a softmax. Rounding alone gives them a gradient, which has no direction
      to compare.

  Returns:
    The row; 0 where a gradient is longer or shorter, or a parameter has one
    that should have none, or did not take part in the other system.
  """
  others = [path for path in ours.keys() - theirs.keys() if ours[path].any()]
  unexpected = dict.fromkeys(others, "the other system has none")
  rounding = _ROUNDING * np.sqrt(sum(_norm(g) ** 2 for g in theirs.values()))
  cosines, num_without = {}, 0
  for path, their in theirs.items():
    our = ours[path]
    _require_shape(path, our, their)
    if path.endswith(without):
      if max(_norm(our), _norm(their)) > rounding:
        unexpected[path] = "there should be none"
      num_without += 1
      continue
    product = np.vdot(np.float64(our), np.float64(their))
    cosines[path] = product / (_norm(our) * _norm(their))
    if abs(_norm(our) / _norm(their) - 1) > _MAX_LENGTH_DIFFERENCE:
      unexpected[path] = f"{_norm(our) / _norm(their):.4f} times as long"
  if unexpected:
    reasons = [f"{path}: {why}" for path, why in sorted(unexpected.items())]
    return Row(what, "cosine", 0.0, MIN_COSINE, True, "; ".join(reasons))
  worst = min(cosines, key=lambda path: cosines[path])
  note = f"the worst of {len(cosines)} parameters: {worst}"
  if num_without:
    note += f"; {num_without} have none in either"
  return Row(what, "cosine", float(cosines[worst]), MIN_COSINE, True, note)


def table(rows: Sequence[Row]) -> str:
  """The rows for people, in aligned columns."""
  cells = [
    (
      "ok" if row.passed else "FAILED",
      row.what,
      row.measure,
      _shown(row),
      f"{'≥' if row.at_least else '≤'} {row.limit:g}",
      row.note,
    )
    for row in rows
  ]
  widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
  return "\n".join(
    "  ".join(
      f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)
    ).rstrip()
    for line in cells
  )


def as_json(row: Row) -> dict[str, JsonValue]:
  """The row for machines."""
  return {**dataclasses.asdict(row), "passed": row.passed}


def _norm(array: np.ndarray) -> float:
  return float(np.linalg.norm(np.float64(array).reshape(-1)))


def _require_shape(what: str, ours: np.ndarray, theirs: np.ndarray) -> None:
  if np.shape(ours) != np.shape(theirs):
    raise ValueError(
      f"{what}: shapes {np.shape(ours)} and {np.shape(theirs)} do not compare"
    )


def _shown(row: Row) -> str:
  if row.measure == "cosine":
    return f"{row.value:.8f}"
  return f"{row.value:.3g}"
