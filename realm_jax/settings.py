"""Types and ranges of settings: the values that a field or argument takes.

A setting declares its range where it declares its type:

    batch_size: PositiveInt
    learning_rate: PositiveFloat
    decay: Annotated[float, Range(least=0, below=1)]

Values that gin binds are checked against both before a command starts, so that
a wrong one is an error of one line, and not a traceback from deep inside a
library. A dataclass that calls `require_valid` in `__post_init__` refuses them
in Python, too. This file imports the standard library alone, because the
numeric core declares settings as well.
"""

import collections.abc
import dataclasses
import functools
import inspect
import math
import numbers
import os
import types
import typing
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, TypeVar

from realm_jax.errors import RealmError


@dataclasses.dataclass(frozen=True)
class Range:
  """Range of a number in an `Annotated` type. All numbers in it are finite.

  The bounds `least` and `most` are in the range, and `above` and `below` not.
  """

  least: float = -math.inf
  above: float = -math.inf
  most: float = math.inf
  below: float = math.inf

  def __contains__(self, number: float) -> bool:
    return (
      math.isfinite(number)
      and self.least <= number <= self.most
      and self.above < number < self.below
    )

  def __str__(self) -> str:
    if math.isfinite(self.least) and math.isfinite(self.most):
      return f"from {self.least} to {self.most}"
    words = {"least": "of at least", "most": "of at most"}
    bounds = dataclasses.asdict(self).items()
    said = [f"{words.get(k, k)} {v}" for k, v in bounds if math.isfinite(v)]
    return " and ".join(said) or "that is finite"


@dataclasses.dataclass(frozen=True)
class Named:
  """Marks in an `Annotated` type what its name in capitals does not set.

  Another name sets it, or with None only `Class.field`.
  """

  name: str | None


@dataclasses.dataclass(frozen=True)
class OfRun:
  """Marks in an `Annotated` type what other commands take from a run.

  They read it in MODEL_DIR/config.json (`realm_jax/configuration/kept.py`), as
  `name`, or the field's own in capitals.
  """

  name: str | None = None


PositiveInt = Annotated[int, Range(least=1)]
NonNegativeInt = Annotated[int, Range(least=0)]
Seed = Annotated[int, Range(least=0, most=2**63 - 1)]
PositiveFloat = Annotated[float, Range(above=0)]
NonNegativeFloat = Annotated[float, Range(least=0)]
DropoutRate = Annotated[float, Range(least=0, below=1)]
# A share of something, or a probability.
Fraction = Annotated[float, Range(least=0, most=1)]
PositiveFraction = Annotated[float, Range(above=0, most=1)]

# What a reader can be asked: to fill in [MASK], or a question.
Asked = Literal["masked sentence", "question"]

_SEQUENCES = (list, tuple, collections.abc.Sequence)
_MAPPINGS = (dict, collections.abc.Mapping)
_NAMES = {
  bool: "True or False",
  float: "a number",
  int: "an integer",
  str: "a string",
  os.PathLike: "a path",
  types.NoneType: "None",
  **dict.fromkeys(_MAPPINGS, "a dictionary"),
}

# Stands for a value that is known only when the command runs.
UNKNOWN = object()
Mark = TypeVar("Mark", Named, OfRun)


@functools.cache
def parameter_types(function: Callable[..., Any]) -> dict[str, Any]:
  """Returns the annotations of a function's or class's parameters.

  Those that cannot be resolved are left out.
  """
  function = function.__init__ if inspect.isclass(function) else function
  try:
    return typing.get_type_hints(inspect.unwrap(function), include_extras=True)
  except (NameError, TypeError):
    return {}


def mark_of(annotation: Any, kind: type[Mark]) -> Mark | None:
  """Returns the mark of a kind that a type has, `Named` or `OfRun`, if any."""
  marks = getattr(annotation, "__metadata__", ())
  return next((mark for mark in marks if isinstance(mark, kind)), None)


def accepts(annotation: Any, value: Any) -> bool:
  """Returns whether a value is of an annotated type.

  An integer is accepted as a float, and a list as any other sequence. What
  this check does not know, it accepts.
  """
  origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
  if value is UNKNOWN or annotation is Any:
    return True
  if origin in (typing.Union, types.UnionType):
    return any(accepts(argument, value) for argument in arguments)
  if origin is Annotated:
    ranges = (limit for limit in arguments[1:] if isinstance(limit, Range))
    return accepts(arguments[0], value) and all(value in one for one in ranges)
  if origin is Literal:
    return value in arguments
  expected = origin or annotation
  if not inspect.isclass(expected):
    return True
  if expected in (int, float):
    # This includes NumPy's numbers.
    kind = numbers.Integral if expected is int else numbers.Real
    is_number = isinstance(value, kind) and not isinstance(value, bool)
    return is_number and (expected is int or math.isfinite(value))
  if expected in _SEQUENCES:
    if not (arguments and isinstance(value, (list, tuple))):
      return isinstance(value, (list, tuple))
    if expected is not tuple or arguments[-1] is Ellipsis:
      arguments = arguments[:1] * len(value)
    return len(value) == len(arguments) and all(map(accepts, arguments, value))
  if expected in _MAPPINGS:
    return isinstance(value, dict) and all(
      all(map(accepts, arguments, item)) for item in value.items()
    )
  try:
    return isinstance(value, expected)
  except TypeError:
    # A protocol that is only for type checkers.
    return True


def describe(annotation: Any) -> str:
  """Returns what an annotation accepts, in words."""
  origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
  if origin in (typing.Union, types.UnionType):
    return " or ".join(dict.fromkeys(map(describe, arguments)))
  if origin is Annotated:
    ranges = [str(limit) for limit in arguments[1:] if isinstance(limit, Range)]
    return " ".join([describe(arguments[0]), *ranges])
  if origin is Literal:
    return " or ".join(map(repr, arguments))
  expected = origin or annotation
  if expected is tuple and arguments and arguments[-1] is not Ellipsis:
    return f"({', '.join(map(describe, arguments))})"
  if expected in _SEQUENCES:
    return ", each ".join(["a list", *map(describe, arguments[:1])])
  return _NAMES.get(expected, getattr(expected, "__name__", str(expected)))


def require_valid(config: object) -> None:
  """Checks the fields of a dataclass against their types and ranges.

  Raises:
    ValueError: A field has a value that it does not take.
  """
  for name, annotation in parameter_types(type(config)).items():
    value = getattr(config, name, UNKNOWN)
    if not accepts(annotation, value):
      raise RealmError(
        f"{name}={value!r}: {type(config).__name__}.{name} wants "
        f"{describe(annotation)}"
      )


def alternatives(annotation: Any) -> Iterator[Any]:
  """Yields the types of which a value may be, without their ranges."""
  origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
  if origin in (typing.Union, types.UnionType, Annotated):
    for argument in arguments[:1] if origin is Annotated else arguments:
      yield from alternatives(argument)
  else:
    yield annotation


def parts(annotation: Any) -> Iterator[Any]:
  """Yields an annotation and all that it consists of."""
  yield annotation
  for argument in typing.get_args(annotation):
    yield from parts(argument)
