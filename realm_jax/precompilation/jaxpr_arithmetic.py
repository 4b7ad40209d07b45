"""Floating-point operations of a program, counted in its jaxpr.

XLA's own count takes a loop's body once, and is −1 where a Pallas kernel is in
the program. Only matrix products and convolutions count, two operations for
each product that is summed.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

from jax.extend import core

# Arrays of the whole mesh are in a jaxpr, but inside a shard_map those of a
# device.
_SHARD_MAP = "shard_map"
_PALLAS_CALL = "pallas_call"


@dataclasses.dataclass(frozen=True)
class Call:
  """An equation of a program, and how often it runs.

  Attributes:
    equation: Equation that calls no other jaxpr, or a Pallas kernel.
    trips: How often a chip runs it, by the loops around it.
    shards: Number of devices whose shards the arrays outside are made of; 1
      where the arrays are those of the whole mesh.
  """

  equation: core.JaxprEqn
  trips: int
  shards: int


def calls(jaxpr: core.Jaxpr, *, unknown_trips: int = 1) -> Iterator[Call]:
  """Yields all equations of a jaxpr that do the work themselves.

  Of a conditional's branches the one with most operations counts. A loop whose
  bound is an argument of the program runs `unknown_trips` times.
  """
  yield from _calls(jaxpr, 1, 1, unknown_trips)


def _calls(
  jaxpr: core.Jaxpr, trips: int, shards: int, unknown_trips: int
) -> Iterator[Call]:
  for equation in jaxpr.eqns:
    name = equation.primitive.name
    params = equation.params
    if name == _PALLAS_CALL:
      yield Call(equation, trips, shards)
    elif name == "cond":
      branches = [
        list(_calls(branch.jaxpr, trips, shards, unknown_trips))
        for branch in params["branches"]
      ]
      yield from max(branches, key=_flops_of)
    elif inner := list(_jaxprs(params)):
      times, parts = trips, shards
      if name == "scan":
        times *= params["length"]
      elif name == "while":
        times *= unknown_trips
      elif name == _SHARD_MAP:
        mesh = params["mesh"]
        parts *= math.prod(mesh.shape[a] for a in params["newly_manual_axes"])
      for body in inner:
        yield from _calls(body, times, parts, unknown_trips)
    else:
      yield Call(equation, trips, shards)


def _jaxprs(params: dict[str, Any]) -> Iterator[core.Jaxpr]:
  for value in params.values():
    for item in value if isinstance(value, (list, tuple)) else (value,):
      if isinstance(item, core.ClosedJaxpr):
        yield item.jaxpr
      elif isinstance(item, core.Jaxpr):
        yield item


def flops(jaxpr: core.Jaxpr, *, unknown_trips: int = 1) -> int:
  """Returns the operations of a program, on all devices together."""
  return _flops_of(list(calls(jaxpr, unknown_trips=unknown_trips)))


def _flops_of(found: list[Call]) -> int:
  return sum(
    equation_flops(call.equation) * call.trips * call.shards for call in found
  )


def equation_flops(equation: core.JaxprEqn) -> int:
  """Returns the operations of one equation; of a kernel those of its grid."""
  name = equation.primitive.name
  if name == _PALLAS_CALL:
    grid = math.prod(equation.params["grid_mapping"].grid)
    return grid * flops(equation.params["jaxpr"])
  count = _COUNTS.get(name)
  return 0 if count is None else count(equation)


@dataclasses.dataclass(frozen=True)
class MatrixProduct:
  """A batch of products of [rows, depth] by [depth, columns]."""

  batch: int
  rows: int
  depth: int
  columns: int

  @property
  def flops(self) -> int:
    """Number of floating-point operations."""
    return 2 * self.batch * self.rows * self.depth * self.columns


def array_of(variable: Any) -> Any:
  """Returns shape and dtype of a variable; jax's types do not promise them."""
  return variable.aval


def matrix_product(equation: core.JaxprEqn) -> MatrixProduct:
  """Returns the sizes of a `dot_general`."""
  (contract, other_contract), (batch, other_batch) = equation.params[
    "dimension_numbers"
  ]
  left, right = (array_of(var).shape for var in equation.invars[:2])
  return MatrixProduct(
    batch=math.prod(left[i] for i in batch),
    rows=_rest(left, (*contract, *batch)),
    depth=math.prod(left[i] for i in contract),
    columns=_rest(right, (*other_contract, *other_batch)),
  )


def _rest(shape: tuple[int, ...], used: tuple[int, ...]) -> int:
  return math.prod(n for i, n in enumerate(shape) if i not in used)


def _convolution_flops(equation: core.JaxprEqn) -> int:
  kernel = array_of(equation.invars[1]).shape
  features = equation.params["dimension_numbers"].rhs_spec[0]
  result = array_of(equation.outvars[0]).shape
  return 2 * math.prod(result) * math.prod(kernel) // kernel[features]


_COUNTS: dict[str, Callable[[core.JaxprEqn], int]] = {
  "dot_general": lambda equation: matrix_product(equation).flops,
  "conv_general_dilated": _convolution_flops,
}
