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
from typing import Annotated, Any, Literal

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
    bounds = (
      ("of at least", self.least),
      ("above", self.above),
      ("of at most", self.most),
      ("below", self.below),
    )
    words = [
      f"{word} {bound}" for word, bound in bounds if math.isfinite(bound)
    ]
    return " and ".join(words) or "that is finite"


class Unnamed:
  """Marks in an `Annotated` type what no name in capitals sets.

  gin files bind it as `Class.field`, since the same name has another meaning
  elsewhere.
  """


@dataclasses.dataclass(frozen=True)
class OfRun:
  """Marks in an `Annotated` type what other commands take from a run.

  `realm_jax.train` keeps it in MODEL_DIR/config.json, which those commands read
  (`realm_jax/configuration/kept.py`), under `name`, or the field's own.
  """

  name: str | None = None


PositiveInt = Annotated[int, Range(least=1)]
NonNegativeInt = Annotated[int, Range(least=0)]
PositiveFloat = Annotated[float, Range(above=0)]
NonNegativeFloat = Annotated[float, Range(least=0)]
DropoutRate = Annotated[float, Range(least=0, below=1)]
# A share of something, or a probability.
Fraction = Annotated[float, Range(least=0, most=1)]
PositiveFraction = Annotated[float, Range(above=0, most=1)]

# What a reader can be asked: to fill in [MASK], or a question.
Asked = Literal["masked sentence", "question"]

_NAMES = {
  bool: "True or False",
  float: "a number",
  int: "an integer",
  str: "a string",
  os.PathLike: "a path",
  types.NoneType: "None",
}


# Stands for a value that is known only when the command runs.
UNKNOWN = object()


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


def is_unnamed(annotation: Any) -> bool:
  """Returns whether a type has the mark `Unnamed`."""
  return Unnamed in getattr(annotation, "__metadata__", ())


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
    return accepts(arguments[0], value) and all(
      value in limit for limit in arguments[1:] if isinstance(limit, Range)
    )
  if origin is Literal:
    return value in arguments
  expected = origin or (types.NoneType if annotation is None else annotation)
  if not inspect.isclass(expected) or getattr(expected, "_is_protocol", False):
    return True
  if expected in (int, float):
    # NumPy's numbers, too.
    kind = numbers.Integral if expected is int else numbers.Real
    is_number = isinstance(value, kind) and not isinstance(value, bool)
    return is_number and (expected is int or math.isfinite(value))
  if expected is tuple and arguments and arguments[-1] is not Ellipsis:
    return (
      isinstance(value, (list, tuple))
      and len(value) == len(arguments)
      and all(map(accepts, arguments, value))
    )
  if expected in (list, tuple, collections.abc.Sequence):
    return isinstance(value, (list, tuple)) and all(
      accepts(argument, item) for argument in arguments[:1] for item in value
    )
  if expected in (dict, collections.abc.Mapping):
    return isinstance(value, dict) and all(
      accepts(argument, item)
      for pair in value.items()
      for argument, item in zip(arguments, pair, strict=False)
    )
  return isinstance(value, expected)


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
  if expected in (list, tuple, collections.abc.Sequence):
    return ", each ".join(["a list", *map(describe, arguments[:1])])
  if expected in (dict, collections.abc.Mapping):
    return "a dictionary"
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


def parts(annotation: Any) -> Iterator[Any]:
  """Yields an annotation and all that it consists of."""
  yield annotation
  for argument in typing.get_args(annotation):
    yield from parts(argument)
