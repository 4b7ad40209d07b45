"""Tensors of other systems to parameters and back, by a table.

Every tensor and every parameter is accounted for. Names and shapes are checked
completely before any tensor is read.
"""

import re
from collections.abc import Mapping
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
_NOT_IMPORTED = "of no use to the parts that are imported"
_NOT_IN_INPUT = "the input has no such module"


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
    return [
      f"mapped ({len(self.mapped)} parameters):",
      *(f"  {show(p, shapes[p])} <- {n}" for p, n in self.mapped.items()),
      f"unused tensors of the input: {len(self.unused) or 'none'}",
      *(f"  {show(n, tensors[n].shape)}: {r}" for n, r in self.unused.items()),
      f"parameters of random values: {len(self.fresh) or 'none'}",
      *(f"  {show(p, shapes[p])}: {r}" for p, r in self.fresh.items()),
    ]


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

  Parameters of modules that the table does not name have none.

  Args:
    tensors: Tensors of the input by name.
    table: Modules of the model and of the input.
    shapes: Shapes of all parameters of the model, by path.
    system: System whose spelling the names have.
    allowed: Reasons why tensors without a place in the table are not used, and
      why other parameters without a tensor start from random values, by regular
      expressions for the whole name or path. Any other is an error.

  Raises:
    WeightsError: A tensor is left over, missing, of another shape, not of
      floats, not finite, or differs from its copy.
  """

  def reason(name: str) -> str:
    fitting = (why for p, why in allowed.items() if re.fullmatch(p, name))
    return next(fitting, "")

  found: dict[str, list[tuple[str, Place]]] = {}
  named, used, misshapen = set(), set(), {}
  for place in places(table, system):
    named.add(place.path)
    for name in (name for name in place.names if name in tensors):
      if (shape := shapes.get(place.path)) is None:
        continue
      wanted = shape[::-1] if place.is_transposed else shape
      if tensors[name].shape == wanted:
        used.add(name)
        found.setdefault(place.path, []).append((name, place))
      elif not reason(name):
        used.add(name)
        misshapen[place.path] = (
          f"{show(name, tensors[name].shape)}, where {place.path} wants "
          f"{list(wanted)}"
        )
  known = {n for place in places(table, system) for n in place.names}
  unused = {
    name: reason(name) or (_NOT_IMPORTED if name in known else "")
    for name in tensors
    if name not in used
  }
  fresh = {
    path: reason(path) or ("" if path in named else _NOT_IN_INPUT)
    for path in shapes
    if path not in found
  }
  problems = {
    _NO_PLACE: [show(n, tensors[n].shape) for n in unused if not unused[n]],
    _NO_TENSOR: [
      show(p, shapes[p]) for p in fresh if not fresh[p] and p not in misshapen
    ],
    _MISSHAPEN: [*misshapen.values()],
  }
  if any(problems.values()):
    raise WeightsError("the weights do not fit. " + _listed(problems))
  parameters, mapped = {}, {}
  for path, (first, *copies) in found.items():
    mapped[path], _ = first
    parameters[path] = _parameter(tensors, *first)
    for name, place in copies:
      unused[name] = f"the same as {mapped[path]}"
      if np.array_equal(_parameter(tensors, name, place), parameters[path]):
        continue
      unused[name] = reason(name)
      if not unused[name]:
        raise WeightsError(
          f"{name} and {mapped[path]} are one parameter here, and differ; pass "
          f"--ignore='{re.escape(name)}' to leave the former out"
        )
  return parameters, Report(mapped, unused, fresh)


def write(
  parameters: Mapping[str, np.ndarray], table: Table, system: System
) -> dict[str, tuple[str, np.ndarray]]:
  """Returns path and tensor of all parameters in a table, by their names."""
  tensors: dict[str, tuple[str, np.ndarray]] = {}
  left = dict(parameters)
  for place in places(table, system):
    if place.path in left:
      array = left.pop(place.path)
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


def _listed(problems: Mapping[str, list[str]]) -> str:
  lines = []
  for title, found in problems.items():
    if found:
      lines.append(f"{len(found)} {title}:")
      lines += [f"  {line}" for line in found[:_LINES_IN_AN_ERROR]]
      if len(found) > _LINES_IN_AN_ERROR:
        lines.append(f"  and {len(found) - _LINES_IN_AN_ERROR} more")
  return "\n".join(lines)
