"""Compiled modules, read from their text.

jax has no other access to what the compiler says of each instruction. Only the
structure is read here: computations, instructions, their shapes, and how often
each computation runs.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping

# Bytes of an element. Booleans have one, and types below a byte are rounded up
# by array.
_BITS = {
  "pred": 8, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "s8": 8, "u8": 8,
  "s16": 16, "u16": 16, "f16": 16, "bf16": 16, "s32": 32, "u32": 32,
  "f32": 32, "s64": 64, "u64": 64, "f64": 64, "c64": 64, "c128": 128,
}  # fmt: skip
_ARRAY = re.compile(r"\b([a-z]+\d*\w*)\[([\d,<=]*)\](\{[^}]*\})?")
# Dimensions from minor to major, and the tile that the minor ones fill.
_LAYOUT = re.compile(r"\{([\d,]*)(?::T\(([\d,]+)\))?")
_SPACE = re.compile(r"S\((\d+)\)")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_NAMES = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(
  r"\b(calls|to_apply|body|condition|true_computation|false_computation)="
  r"%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"?(\d+)"?')


@dataclasses.dataclass(frozen=True)
class Array:
  """One array of a result.

  Attributes:
    size_bytes: Bytes that it takes, with the padding of its tiles.
    space: Number of the memory that it lies in, 0 for the chip's (HBM).
  """

  size_bytes: int
  space: int


@dataclasses.dataclass(frozen=True)
class Instruction:
  """One instruction, with the texts of its shape, arguments and attributes."""

  name: str
  operation: str
  shape: str
  arguments: str
  attributes: str

  @functools.cached_property
  def operands(self) -> tuple[str, ...]:
    """The names of the instructions whose results it takes."""
    return tuple(_NAMES.findall(self.arguments))

  @property
  def parameter_number(self) -> int:
    """The number of a parameter among those of its computation."""
    return int(self.arguments.strip("()"))

  @functools.cached_property
  def arrays(self) -> tuple[Array, ...]:
    """The arrays of the result; a tuple has several."""
    return tuple(_arrays(self.shape))

  @functools.cached_property
  def called(self) -> tuple[tuple[str, str], ...]:
    """The computations that it calls, each with its role."""
    found = _CALLED.findall(self.attributes)
    for branches in _BRANCHES.findall(self.attributes):
      found += [("branch", name) for name in _NAMES.findall(branches)]
    return tuple(found)

  @property
  def known_trips(self) -> int | None:
    """How often a loop runs, where the compiler knows it."""
    found = _TRIPS.search(self.attributes)
    return int(found.group(1)) if found else None


# Instructions by name, in their order.
Computation = Mapping[str, Instruction]


@dataclasses.dataclass(frozen=True)
class Module:
  """A compiled module.

  Attributes:
    computations: All computations, by name.
    entry: Name of the one that runs.
    unknown_trips: How often a loop runs whose bound is known to the program
      that runs alone.
  """

  computations: Mapping[str, Computation]
  entry: str
  unknown_trips: int = 1

  @functools.cached_property
  def runs(self) -> Mapping[str, int]:
    """How often each computation runs; those inside fusions count as well.

    Of a conditional's branches only the one with the most results runs.
    """
    runs = dict.fromkeys(self.computations, 0)

    def visit(name: str, times: int) -> None:
      runs[name] += times
      for instruction in self.computations[name].values():
        for called in self._run_by(instruction):
          visit(called, times * self._trips(instruction))

    visit(self.entry, 1)
    return runs

  def _run_by(self, instruction: Instruction) -> list[str]:
    """Returns the computations that run when an instruction does."""
    if instruction.operation == "conditional":
      branches = [name for _, name in instruction.called]
      return [max(branches, key=self._result_bytes)]
    # The function of a reduction is no work of its own.
    return [
      name
      for role, name in instruction.called
      if role != "to_apply" or instruction.operation == "call"
    ]

  def _result_bytes(self, name: str) -> int:
    """Returns the bytes of a computation's results, of all runs of loops."""
    total = 0
    for instruction in self.computations[name].values():
      total += sum(array.size_bytes for array in instruction.arrays)
      trips = self._trips(instruction)
      for called in self._run_by(instruction):
        total += trips * self._result_bytes(called)
    return total

  def _trips(self, instruction: Instruction) -> int:
    if instruction.operation != "while":
      return 1
    return instruction.known_trips or self.unknown_trips

  def scheduled(self) -> Iterator[tuple[Computation, Instruction, int]]:
    """Yields what the chip runs one after another, and how often.

    These are the instructions of the entry and of the bodies of its loops and
    branches; a fusion is one instruction.
    """
    waiting, seen = [self.entry], set()
    while waiting:
      name = waiting.pop()
      if name in seen:
        continue
      seen.add(name)
      computation = self.computations[name]
      for instruction in computation.values():
        if instruction.operation in ("while", "conditional", "call"):
          waiting.extend(called for _, called in instruction.called)
        yield computation, instruction, self.runs[name]


def parse(text: str, *, unknown_trips: int = 1) -> Module:
  """Returns the module of a text, as `jax.stages.Compiled.as_text` has it.

  Raises:
    ValueError: The text has no entry.
  """
  computations: dict[str, dict[str, Instruction]] = {}
  entry = None
  current: dict[str, Instruction] = {}
  for line in text.splitlines():
    if header := _HEADER.match(line):
      current = computations.setdefault(header.group(2), {})
      entry = header.group(2) if header.group(1) else entry
    elif found := _INSTRUCTION.match(line):
      instruction = _instruction(*found.groups())
      current[instruction.name] = instruction
  if entry is None:
    raise ValueError("the text of the compiled module has no ENTRY")
  return Module(computations, entry, unknown_trips)


def _instruction(name: str, text: str) -> Instruction:
  shape_end = _closing(text, 0) if text.startswith("(") else text.index(" ")
  shape, rest = text[:shape_end], text[shape_end:].lstrip()
  operation, _, _ = rest.partition("(")
  operands_end = _closing(rest, len(operation))
  return Instruction(
    name=name,
    operation=operation,
    shape=shape,
    arguments=rest[len(operation) : operands_end],
    attributes=rest[operands_end:],
  )


def _closing(text: str, start: int) -> int:
  """Returns the place after the parenthesis that closes that at `start`."""
  depth = 0
  for place in range(start, len(text)):
    if text[place] == "(":
      depth += 1
    elif text[place] == ")":
      depth -= 1
      if depth == 0:
        return place + 1
  raise ValueError(f"no parenthesis closes {text[start : start + 40]!r}")


def _arrays(shape: str) -> Iterator[Array]:
  for dtype, sides, layout in _ARRAY.findall(shape):
    bits = 8 if dtype.startswith("f8") else _BITS.get(dtype, 0)
    space = _SPACE.search(layout)
    elements = math.prod(_padded_sides(_numbers(sides), layout))
    yield Array(
      size_bytes=-(-elements * bits // 8),
      space=int(space.group(1)) if space else 0,
    )


def _padded_sides(sides: list[int], layout: str) -> list[int]:
  """Returns the sides of an array as it is stored, from major to minor.

  The minor ones are padded to whole tiles, such as T(8,128).
  """
  found = _LAYOUT.match(layout)
  if found is None:
    return sides
  order, tile = map(_numbers, found.groups(default=""))
  stored = [sides[i] for i in reversed(order)]
  stored = [1] * (len(tile) - len(stored)) + stored
  first = len(stored) - len(tile)
  return stored[:first] + [
    -(-side // size) * size
    for side, size in zip(stored[first:], tile, strict=True)
  ]


def _numbers(text: str) -> list[int]:
  return [int(number.lstrip("<=")) for number in text.split(",") if number]
