"""Tensors of other systems to parameters and back, by a table.

Every tensor and every parameter is accounted for.
"""

import re
from collections.abc import Mapping

import numpy as np

from realm_jax.weights import WeightsError
from realm_jax.weights.tables import Place, System, Table, places

Shape = tuple[int, ...]
Tensors = Mapping[str, np.ndarray]

_LINES_IN_AN_ERROR = 20
_WORDS = "encoder/word_embeddings"
_OTHER_VOCABULARY = (
  ": is it another model's vocabulary? Where the last rows are padding, name "
  "them in a copy of vocab.txt by as many lines at its end ([unused_row_1] and "
  "so on)"
)


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
) -> tuple[dict[str, np.ndarray], list[str]]:
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

  Returns:
    The parameters, and a line for each tensor and parameter that says what
    became of it.

  Raises:
    WeightsError: A tensor is left over, missing, of another shape, not of
      floats, not finite, or differs from its copy.
  """

  def reason(name: str) -> str:
    fitting = (why for p, why in allowed.items() if re.fullmatch(p, name))
    return next(fitting, "")

  found: dict[str, list[tuple[str, Place]]] = {}
  used, named, misshapen, unused = set(), set(), {}, {}
  for place in places(table, system):
    named.add(place.path)
    shape = shapes.get(place.path, ())
    wanted = shape[::-1] if place.is_transposed else shape
    for name in filter(tensors.__contains__, place.names):
      if place.path not in shapes:
        unused[name] = "of no use to the parts that are imported"
      elif tensors[name].shape == wanted:
        used.add(name)
        found.setdefault(place.path, []).append((name, place))
      elif not reason(name):
        used.add(name)
        misshapen[place.path] = (
          f"{show(name, tensors[name].shape)}, where {place.path} wants "
          f"{list(wanted)}"
          + (_OTHER_VOCABULARY if place.path.endswith(_WORDS) else "")
        )
  unused = {
    name: reason(name) or unused.get(name, "")
    for name in tensors
    if name not in used
  }
  fresh = {
    path: reason(path) or ("" if path in named else "not in the input")
    for path in shapes
    if path not in found and path not in misshapen
  }
  problems = [
    *(f"{show(n, tensors[n].shape)} has no place here" for n in _blank(unused)),
    *(
      f"{show(p, shapes[p])} has no tensor in the input" for p in _blank(fresh)
    ),
    *misshapen.values(),
  ]
  if problems:
    more = len(problems) - _LINES_IN_AN_ERROR
    raise WeightsError(
      f"{len(problems)} tensors and parameters do not fit; is config.json that "
      "of these weights? --ignore=REGEX, for whole names of tensors, leaves "
      "them out, and for whole paths of parameters starts them from random "
      "values:\n  "
      + "\n  ".join(problems[:_LINES_IN_AN_ERROR])
      + (f"\n  and {more} more" if more > 0 else "")
    )
  parameters, lines = {}, [f"mapped ({len(found)} parameters):"]
  for path, (first, *copies) in found.items():
    lines.append(f"  {show(path, shapes[path])} <- {first[0]}")
    parameters[path] = _parameter(tensors, *first)
    for name, place in copies:
      same = np.array_equal(_parameter(tensors, name, place), parameters[path])
      unused[name] = f"the same as {first[0]}" if same else reason(name)
      if not unused[name]:
        raise WeightsError(
          f"{name} and {first[0]} are one parameter here, and differ; pass "
          f"--ignore='{re.escape(name)}' to leave the former out"
        )
  lines.append(f"unused tensors of the input: {len(unused) or 'none'}")
  lines += [
    f"  {show(n, tensors[n].shape)}: {why}" for n, why in unused.items()
  ]
  lines.append(f"parameters of random values: {len(fresh) or 'none'}")
  lines += [f"  {show(p, shapes[p])}: {why}" for p, why in fresh.items()]
  return parameters, lines


def _blank(reasons: Mapping[str, str]) -> list[str]:
  return [name for name, why in reasons.items() if not why]


def write(
  parameters: Mapping[str, np.ndarray], table: Table
) -> dict[str, tuple[str, np.ndarray]]:
  """Returns path and tensor of parameters in a table, by PyTorch's names."""
  tensors: dict[str, tuple[str, np.ndarray]] = {}
  left = dict(parameters)
  for place in places(table, "torch"):
    if place.path in left:
      array = left.pop(place.path)
      array = array.T if place.is_transposed else array
      array = np.ascontiguousarray(array * np.float32(place.factor))
      tensors[place.names[0]] = place.path, array
  return tensors


def _parameter(tensors: Tensors, name: str, place: Place) -> np.ndarray:
  array = tensors[name]
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
