"""The time of Pallas kernels, for which the compiler has no estimate.

A kernel takes at least as long as the largest of three parts: its matrix
products, its exponentials, and the blocks that it copies from and to memory.
"""

import dataclasses
import math
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend import core
from jaxtyping import Int

from realm_jax.precompilation.chips import Chip
from realm_jax.precompilation.jaxpr_arithmetic import (
  Call,
  MatrixProduct,
  array_of,
  calls,
  equation_flops,
  matrix_product,
)

# Elements that a core's transcendental unit computes in a cycle: a register.
_EXPONENTIALS_PER_CYCLE = 8 * 128
# Rows of a register, to which those of a product are rounded up.
_SUBLANES = 8
_TRANSCENDENTAL = frozenset(
  "exp exp2 expm1 log log1p tanh logistic erf rsqrt sqrt sin cos pow".split()
)
# Memory spaces of arrays that a kernel is given whole, in the chip's memory.
_WHOLE = ("any", "hbm")
# Passes through the matrix unit of a product of float32 arrays.
_PASSES = {lax.Precision.HIGH: 3, lax.Precision.HIGHEST: 6}


@dataclasses.dataclass(frozen=True)
class Kernel:
  """What one kernel does in a run of a program, on one chip.

  Attributes:
    name: Name of the kernel.
    calls: Number of its calls.
    flops: Operations of all calls.
    exponentials: Exponentials, and other transcendental functions, of all.
    bytes: Bytes that all calls copy from and to memory.
    product_seconds: Time of the products at the rate that their tiles allow.
    exponential_seconds: Time of the exponentials.
    memory_seconds: Time of the copies.
  """

  name: str
  calls: int
  flops: int
  exponentials: int
  bytes: int
  product_seconds: float
  exponential_seconds: float
  memory_seconds: float

  @property
  def seconds(self) -> float:
    """The largest of its parts."""
    return max(
      self.product_seconds, self.exponential_seconds, self.memory_seconds
    )


def kernels(
  jaxpr: core.Jaxpr, chip: Chip, *, unknown_trips: int = 1
) -> list[Kernel]:
  """Returns the kernels of a program, those of one name and size together."""
  found: dict[Kernel, int] = {}
  for call in calls(jaxpr, unknown_trips=unknown_trips):
    if call.equation.primitive.name == "pallas_call":
      kernel = _kernel(call, chip)
      found[kernel] = found.get(kernel, 0) + call.trips
  return [_times(kernel, count) for kernel, count in found.items()]


def _times(kernel: Kernel, count: int) -> Kernel:
  """Returns a kernel with what `count` of its calls do."""
  sums = {
    field.name: getattr(kernel, field.name) * count
    for field in dataclasses.fields(kernel)
    if field.name != "name"
  }
  return dataclasses.replace(kernel, **sums)


def _kernel(call: Call, chip: Chip) -> Kernel:
  """Returns what one call of a kernel does."""
  equation = call.equation
  mapping = equation.params["grid_mapping"]
  steps = math.prod(mapping.grid)
  product_cycles, exponentials = 0.0, 0
  for inner in calls(equation.params["jaxpr"]):
    name = inner.equation.primitive.name
    if name == "dot_general":
      product_cycles += inner.trips * product_passes(
        matrix_product(inner.equation), _passes(inner.equation), chip
      )
    elif name in _TRANSCENDENTAL:
      shape = array_of(inner.equation.outvars[0]).shape
      exponentials += inner.trips * math.prod(shape)
  copied = sum(
    _copied_bytes(block, mapping) for block in mapping.block_mappings
  )
  units = chip.cores * chip.matrix_units
  per_cycle = chip.cores * _EXPONENTIALS_PER_CYCLE
  return Kernel(
    name=str(equation.params.get("name") or "pallas_call"),
    calls=1,
    flops=equation_flops(equation),
    exponentials=steps * exponentials,
    bytes=copied,
    product_seconds=steps * product_cycles / units / chip.clock,
    exponential_seconds=steps * exponentials / per_cycle / chip.clock,
    memory_seconds=copied / chip.memory_bandwidth,
  )


def _passes(equation: core.JaxprEqn) -> int:
  if array_of(equation.invars[0]).dtype != np.float32:
    return 1
  precision = equation.params["precision"]
  if isinstance(precision, tuple):
    precision = precision[0]
  return _PASSES.get(precision, 1)


def product_passes(product: MatrixProduct, passes: int, chip: Chip) -> float:
  """Returns the cycles that one matrix unit takes for a product.

  A tile of one operand is held while the rows of the other pass through it, and
  is exchanged in as many cycles as it has rows. A side that is shorter than the
  unit leaves a part of it idle. Either operand may be held.
  """
  width = chip.matrix_width

  def cycles(rows: int, columns: int) -> int:
    tiles = -(-product.depth // width) * -(-columns // width)
    rounded = -(-rows // _SUBLANES) * _SUBLANES
    return tiles * max(rounded, width)

  best = min(
    cycles(product.rows, product.columns), cycles(product.columns, product.rows)
  )
  return float(product.batch * passes * best)


def _copied_bytes(block: Any, mapping: Any) -> int:
  """Returns the bytes of the blocks that a kernel reads or writes.

  A block is copied when its place is another one than at the step before.
  Arrays that a kernel copies itself count once.
  """
  array = block.array_aval
  space = block.transformed_block_aval.memory_space
  if getattr(space, "value", space) in _WHOLE:
    return math.prod(array.shape) * array.dtype.itemsize
  sides = [
    getattr(side, "block_size", side if isinstance(side, int) else 1)
    for side in block.block_shape
  ]
  return _num_copies(block, mapping) * math.prod(sides) * array.dtype.itemsize


def _num_copies(block: Any, mapping: Any) -> int:
  grid = mapping.grid
  if not grid or mapping.num_index_operands:
    # One step, or places that depend on values that only a run has.
    return math.prod(grid)
  places = _places(block.index_map_jaxpr, grid)
  return 1 + int((places[:, 1:] != places[:, :-1]).any(axis=0).sum())


def _places(
  index_map: core.ClosedJaxpr, grid: tuple[int, ...]
) -> Int[np.ndarray, "d s"]:
  """Returns the block's place at each step, the last dimension fastest."""
  steps = np.indices(grid).reshape(len(grid), -1).astype(np.int32)
  place = jax.vmap(core.jaxpr_as_fun(index_map))(*steps)
  count = steps.shape[1]
  return np.stack([np.broadcast_to(np.asarray(p), (count,)) for p in place])
