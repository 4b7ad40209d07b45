"""Tensors of other systems to parameters and back, by a table.

Every tensor and every parameter is accounted for. Names and shapes are checked
completely before any tensor is read.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

import numpy as np

from realm_jax.weights import WeightsError
from realm_jax.weights.tables import Place, System, Table, places

Shape = tuple[int, ...]

_LINES_IN_AN_ERROR = 20
_NO_PLACE = (
  "tensors of the input have no place here; --ignore=REGEX, for whole names, "
  "leaves them out"
)
_NO_TENSOR = (
  "parameters have no tensor in the input; --ignore=REGEX, for whole paths, "
  "starts them from random values"
)
_MISSHAPEN = (
  "tensors have another shape; is config.json that of these weights? "
  "--ignore=REGEX, for the tensor and the parameter, leaves both out"
)


class Tensor(Protocol):
  """A tensor of a file, which `np.asarray` reads in its stored dtype."""

  @property
  def shape(self) -> Shape: ...


Tensors = Mapping[str, Tensor]


class Report(NamedTuple):
  """What became of every tensor and of every parameter.

  Attributes:
    mapped: Names of the tensors by the path of the parameter.
    unused: Reasons by the name of a tensor that is not used.
    fresh: Reasons by the path of a parameter that has no tensor.
  """

  mapped: Mapping[str, str]
  unused: Mapping[str, str]
  fresh: Mapping[str, str]

  def lines(self, tensors: Tensors, shapes: Mapping[str, Shape]) -> list[str]:
    """Returns a line for each tensor and each parameter."""
    lines = [f"mapped ({len(self.mapped)} parameters):"]
    lines += [f"  {show(p, shapes[p])} <- {n}" for p, n in self.mapped.items()]
    lines.append(f"unused tensors of the input: {len(self.unused) or 'none'}")
    for name, reason in self.unused.items():
      lines.append(f"  {show(name, tensors[name].shape)}: {reason}")
    lines.append(f"parameters of random values: {len(self.fresh) or 'none'}")
    for path, reason in self.fresh.items():
      lines.append(f"  {show(path, shapes[path])}: {reason}")
    return lines


def show(name: str, shape: Shape) -> str:
  """Returns a name and a shape for people, such as `pooler.weight [8, 8]`."""
  return f"{name} {list(shape)}"


def read(
  tensors: Tensors,
  table: Table,
  shapes: Mapping[str, Shape],
  *,
  system: System,
  allowed: Mapping[str, str],
) -> tuple[dict[str, np.ndarray], Report]:
  """Reads all parameters that have a tensor, in float32 and by path.

  Args:
    tensors: Tensors of the input by name.
    table: Modules of the model, and their names in the input.
    shapes: Shapes of all parameters of the model, by path.
    system: System whose spelling the names have.
    allowed: Reasons why tensors without a place in the table are not used, and
      why parameters without a tensor start from random values, by regular
      expressions for the whole name or path. Any other is an error.

  Raises:
    WeightsError: A tensor is left over, missing, of another shape, not of
      floats, not finite, or differs from its copy.
  """
  found: dict[str, list[tuple[str, Place]]] = {}
  used, misshapen = set(), {}
  for place in places(table, system):
    shape = shapes[place.path]
    wanted = shape[::-1] if place.is_transposed else shape
    for name in (name for name in place.names if name in tensors):
      if tensors[name].shape == wanted:
        used.add(name)
        found.setdefault(place.path, []).append((name, place))
      elif not _reason(allowed, name):
        used.add(name)
        misshapen[place.path] = (
          f"{show(name, tensors[name].shape)}, where {place.path} wants "
          f"{list(wanted)}"
        )
  left = {n: _reason(allowed, n) for n in tensors if n not in used}
  missing = {p: _reason(allowed, p) for p in shapes if p not in found}
  _raise_problems(
    {
      _NO_PLACE: [show(n, tensors[n].shape) for n in left if not left[n]],
      _NO_TENSOR: [
        show(path, shapes[path])
        for path, reason in missing.items()
        if not reason and path not in misshapen
      ],
      _MISSHAPEN: misshapen.values(),
    }
  )
  parameters, mapped = {}, {}
  for path, (first, *copies) in found.items():
    mapped[path], place = first
    parameters[path] = _parameter(tensors, *first)
    for name, place in copies:
      left[name] = f"the same as {mapped[path]}"
      if not np.array_equal(_parameter(tensors, name, place), parameters[path]):
        left[name] = _reason(allowed, name)
      if not left[name]:
        raise WeightsError(
          f"{name} and {mapped[path]} are one parameter here, and differ; pass "
          f"--ignore='{re.escape(name)}' to leave the former out"
        )
  return parameters, Report(mapped, left, missing)


def write(
  parameters: Mapping[str, np.ndarray], table: Table, system: System
) -> dict[str, tuple[str, np.ndarray]]:
  """Returns path and tensor of all parameters in a table, by their names."""
  tensors: dict[str, tuple[str, np.ndarray]] = {}
  written = set()
  for place in places(table, system):
    if place.path not in written:
      written.add(place.path)
      array = parameters[place.path]
      array = array.T if place.is_transposed else array
      array = np.ascontiguousarray(array * np.float32(place.factor))
      tensors[place.names[0]] = place.path, array
  return tensors


def _parameter(tensors: Tensors, name: str, place: Place) -> np.ndarray:
  array = np.asarray(tensors[name])
  # numpy does not count bfloat16 among its floats.
  if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
    raise WeightsError(
      f"{name} holds {array.dtype}; want float32, float16 or bfloat16 "
      "(quantized weights must be dequantized first)"
    )
  array = array.astype(np.float32)
  if not np.isfinite(array).all():
    raise WeightsError(
      f"{name} holds NaN or infinite values; the file is damaged or its "
      "training had diverged"
    )
  array = array.T if place.is_transposed else array
  return np.ascontiguousarray(array / np.float32(place.factor))


def _reason(reasons: Mapping[str, str], name: str) -> str:
  """Returns the reason of the first pattern that fits; empty without one."""
  fitting = (r for p, r in reasons.items() if re.fullmatch(p, name))
  return next(fitting, "")


def _raise_problems(problems: Mapping[str, Iterable[str]]) -> None:
  """Raises one `WeightsError` that names all problems by what they are."""
  parts = []
  for title, found in problems.items():
    if lines := list(found):
      parts.append(f"{len(lines)} {title}:")
      parts += [f"  {line}" for line in lines[:_LINES_IN_AN_ERROR]]
      if len(lines) > _LINES_IN_AN_ERROR:
        parts.append(f"  and {len(lines) - _LINES_IN_AN_ERROR} more")
  if parts:
    raise WeightsError("the weights do not fit. " + "\n".join(parts))
