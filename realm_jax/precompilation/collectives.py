"""The collectives of a compiled module, and the mesh axes that they cross."""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Int

from realm_jax.precompilation.hlo import Instruction, Module

_OPERATIONS = (
  "all-reduce",
  "all-gather",
  "reduce-scatter",
  "all-to-all",
  "ragged-all-to-all",
  "collective-permute",
  "collective-broadcast",
)
_CHANNEL = re.compile(r"\bchannel_id=(\d+)")
_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=\{(\{.*?\})?\}")
_IOTA = re.compile(
  r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?"
)
_MESH = re.compile(
  r"replica_groups=mesh\[([^\]]*)\](?:, ?device_ids=\(([^)]*)\))? ?\{([^}]*)\}"
)
_MESH_AXIS = re.compile(r"'([^']+)'=(\d+)")
_MESH_PART = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")
_IOTA_IDS = re.compile(r"\[([\d,]+)\](?:T\(([\d,]+)\))?")
# What is neither along an axis of the mesh nor along several.
OTHER = "other"


@dataclasses.dataclass(frozen=True)
class Collective:
  """What all collectives of one kind along one axis move in a run.

  Attributes:
    operation: Name, such as `all-reduce`.
    axis: Axis of the mesh, or several, joined by `×`.
    bytes: Size of what a chip contributes or receives, whichever is larger.
    count: Number of such collectives.
  """

  operation: str
  axis: str
  bytes: int
  count: int

  @property
  def sent_bytes(self) -> int:
    """Bytes that a chip sends in a ring: a sum goes round it twice."""
    return self.bytes * (2 if self.operation == "all-reduce" else 1)


def collectives(
  module: Module, mesh_shape: Mapping[str, int]
) -> list[Collective]:
  """Returns the collectives of a module, the largest first.

  The partitions of a module are numbered in the order of the mesh's devices.
  """
  found: dict[tuple[str, str], list[int]] = {}
  for instruction, operation, runs in _all(module):
    axis = axis_of(instruction.attributes, mesh_shape)
    entry = found.setdefault((operation, axis), [0, 0])
    entry[0] += _payload(module, instruction) * runs
    entry[1] += runs
  made = [Collective(*key, *entry) for key, entry in found.items()]
  return sorted(made, key=lambda c: (-c.bytes, c.operation, c.axis))


def _all(module: Module) -> Iterator[tuple[Instruction, str, int]]:
  """Yields each collective once.

  Where one begins in a fusion and ends in another, both have the instruction,
  with the same channel. Several of one computation are different ones, though
  they may share a channel, too.
  """
  homes: dict[tuple[str, str, str], str] = {}
  for name, computation in module.computations.items():
    for instruction in computation.values():
      operation = instruction.operation.removesuffix("-start")
      if operation not in _OPERATIONS or not module.runs[name]:
        continue
      channel = _CHANNEL.search(instruction.attributes)
      if channel is not None:
        key = channel.group(1), operation, instruction.shape
        if homes.setdefault(key, name) != name:
          continue
      yield instruction, operation, module.runs[name]


def _payload(module: Module, instruction: Instruction) -> int:
  """Returns the bytes of the larger side, the operands or the result."""
  sizes = [array.size_bytes for array in instruction.arrays]
  if instruction.operation.endswith("-start"):
    # The result of a start names the operand as well.
    return max(sizes)
  computation = next(
    computation
    for computation in module.computations.values()
    if computation.get(instruction.name) is instruction
  )
  operands = sum(
    array.size_bytes
    for name in instruction.operands
    if name in computation
    for array in computation[name].arrays
  )
  return max(operands, sum(sizes))


def axis_of(attributes: str, mesh_shape: Mapping[str, int]) -> str:
  """Returns the axes of the mesh along which a collective's groups lie."""
  groups = _groups(attributes, math.prod(mesh_shape.values()))
  axes = [name for name, size in mesh_shape.items() if size > 1]
  sides = [mesh_shape[name] for name in axes]
  if groups is None or not axes:
    return OTHER
  crossed: set[str] = set()
  for group in groups:
    if max(group, default=0) >= math.prod(sides):
      return OTHER
    places = np.stack(np.unravel_index(np.asarray(group), sides))
    varying = (places != places[:, :1]).any(axis=1)
    crossed.update(np.asarray(axes)[varying].tolist())
  return "×".join(name for name in axes if name in crossed) or OTHER


def _groups(attributes: str, devices: int) -> Sequence[Sequence[int]] | None:
  """Returns the devices of each group, from any of the forms of the text."""
  if found := _MESH.search(attributes):
    return _mesh_groups(*found.groups()).tolist()
  if found := _IOTA.search(attributes):
    sizes, sides, order = found.groups()
    return _iota(sides, order).reshape(_numbers(sizes)).tolist()
  if found := _LISTED.search(attributes):
    listed = re.findall(r"\{([\d,]*)\}", found.group(1) or "")
    return [_numbers(group) for group in listed] or [list(range(devices))]
  return None


def _mesh_groups(
  axes: str, device_ids: str | None, crossed: str
) -> Int[np.ndarray, "g s"]:
  """Returns the groups of a text such as mesh['a'=4,'b'=2] {'b'}.

  An axis may be divided: 'a':(2)4 is its part of 4 after parts of 2.
  """
  sizes = {name: int(size) for name, size in _MESH_AXIS.findall(axes)}
  ids = np.arange(math.prod(sizes.values()))
  if device_ids:
    found = _IOTA_IDS.search(device_ids)
    ids = (
      _iota(*found.groups())
      if found
      else np.array(_numbers(device_ids), np.int64)
    )
  parts = _MESH_PART.findall(crossed)
  sides, chosen = [], []
  for name, size in sizes.items():
    divided = [(int(a), int(b)) for n, a, b in parts if n == name and b]
    whole = any(n == name and not b for n, _, b in parts)
    cuts = sorted({1, size, *(x for a, b in divided for x in (a, a * b))})
    for low, high in itertools.pairwise(cuts):
      chosen.append(
        whole or any(a <= low and high <= a * b for a, b in divided)
      )
      sides.append(high // low)
  order = [i for i, c in enumerate(chosen) if not c]
  order += [i for i, c in enumerate(chosen) if c]
  size = math.prod(s for s, c in zip(sides, chosen, strict=True) if c)
  return ids.reshape(sides).transpose(order).reshape(-1, size)


def _iota(sides: str, order: str | None) -> Int[np.ndarray, " n"]:
  """Returns 0, 1, … in these sides, transposed and flattened."""
  shape = _numbers(sides)
  ids = np.arange(math.prod(shape)).reshape(shape)
  return ids.transpose(_numbers(order) if order else None).reshape(-1)


def _numbers(text: str) -> list[int]:
  return [int(number) for number in text.split(",") if number.strip()]
