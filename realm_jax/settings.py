"""Types and ranges of settings, the values that a field or argument accepts.

The type of a setting includes its range:

    batch_size: PositiveInt
    learning_rate: PositiveFloat
    decay: Annotated[float, Range(least=0, below=1)]

Values in gin are checked against both before a command starts, so that a wrong
value is an error of one line, and not a traceback from deep inside a library.
A dataclass that calls `require_valid` in `__post_init__` makes the same checks
in Python. This file imports only the standard library, because the numeric core
also declares settings.
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
  """Range of a finite number, in an `Annotated` type.

  `least` and `most` are inclusive bounds; `above` and `below` are exclusive.
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
  """Mark, in an `Annotated` type, of a field with another name in gin.

  By default the name is the field's own in capitals. With None, only
  `Class.field` sets the field.
  """

  name: str | None


@dataclasses.dataclass(frozen=True)
class OfRun:
  """Mark, in an `Annotated` type, of a setting that other commands share.

  They read it from MODEL_DIR/config.json (`realm_jax/configuration/kept.py`),
  by `name`, or else by the field's name in capitals.
  """

  name: str | None = None


PositiveInt = Annotated[int, Range(least=1)]
NonNegativeInt = Annotated[int, Range(least=0)]
Seed = Annotated[int, Range(least=0, most=2**63 - 1)]
PositiveFloat = Annotated[float, Range(above=0)]
NonNegativeFloat = Annotated[float, Range(least=0)]
DropoutRate = Annotated[float, Range(least=0, below=1)]
# A share or a probability.
Fraction = Annotated[float, Range(least=0, most=1)]
PositiveFraction = Annotated[float, Range(above=0, most=1)]

# Kinds of text that a reader can be asked: a sentence with [MASK], a question.
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

# Placeholder for a value that is known only when the command runs.
UNKNOWN = object()
Mark = TypeVar("Mark", Named, OfRun)


@functools.cache
def parameter_types(function: Callable[..., Any]) -> dict[str, Any]:
  """Returns the annotations of a function's or class's parameters.

  Annotations that cannot be resolved are left out.
  """
  function = function.__init__ if inspect.isclass(function) else function
  try:
    return typing.get_type_hints(inspect.unwrap(function), include_extras=True)
  except (NameError, TypeError):
    return {}


def mark_of(annotation: Any, kind: type[Mark]) -> Mark | None:
  """Returns a type's mark of this kind, `Named` or `OfRun`, if any."""
  marks = getattr(annotation, "__metadata__", ())
  return next((mark for mark in marks if isinstance(mark, kind)), None)


def accepts(annotation: Any, value: Any) -> bool:
  """Returns whether a value has an annotated type.

  An integer is accepted as a float, and a list as any other sequence. Types
  that this check does not know are accepted.
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
    # Includes NumPy's numbers.
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
  """Describes the values that an annotation accepts."""
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
    ValueError: A field has an invalid value.
  """
  for name, annotation in parameter_types(type(config)).items():
    value = getattr(config, name, UNKNOWN)
    if not accepts(annotation, value):
      raise RealmError(
        f"{name}={value!r}: {type(config).__name__}.{name} wants "
        f"{describe(annotation)}"
      )


def alternatives(annotation: Any) -> Iterator[Any]:
  """Yields the types that a value may have, without their ranges."""
  origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
  if origin in (typing.Union, types.UnionType, Annotated):
    for argument in arguments[:1] if origin is Annotated else arguments:
      yield from alternatives(argument)
  else:
    yield annotation


def parts(annotation: Any) -> Iterator[Any]:
  """Yields an annotation and all of its parts."""
  yield annotation
  for argument in typing.get_args(annotation):
    yield from parts(argument)
