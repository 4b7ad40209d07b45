"""Configured values, checked against the annotations of what they configure.

A gin binding may have any type. Checked before a command starts, a wrong one
is an error of one line, and not a traceback from deep inside a library.
"""

import collections.abc
import inspect
import os
import types
import typing
from collections.abc import Callable
from typing import Any

_NAMES = {
  bool: "True or False",
  float: "a number",
  int: "an integer",
  str: "a string",
  os.PathLike: "a path",
  types.NoneType: "None",
}
_PLURALS = {(str,): "strings", (int,): "integers", (float,): "numbers"}


# Stands for a value that is known only when the command runs.
UNKNOWN = object()


def parameter_types(function: Callable[..., Any]) -> dict[str, Any]:
  """Returns the annotations of a function's or class's parameters.

  Those that cannot be resolved are left out.
  """
  function = function.__init__ if inspect.isclass(function) else function
  try:
    return typing.get_type_hints(inspect.unwrap(function))
  except (NameError, TypeError):
    return {}


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
  if origin is typing.Literal:
    return value in arguments
  expected = origin or (types.NoneType if annotation is None else annotation)
  if not inspect.isclass(expected):
    return True
  if expected is float:
    return isinstance(value, int | float) and not isinstance(value, bool)
  if expected is int:
    return isinstance(value, int) and not isinstance(value, bool)
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
  try:
    return isinstance(value, expected)
  except TypeError:  # A protocol that cannot be checked.
    return True


def describe(annotation: Any) -> str:
  """Returns what an annotation accepts, in words."""
  origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
  if origin in (typing.Union, types.UnionType):
    return " or ".join(dict.fromkeys(map(describe, arguments)))
  if origin is typing.Literal:
    return " or ".join(map(repr, arguments))
  expected = origin or annotation
  if expected is tuple and arguments and arguments[-1] is not Ellipsis:
    return f"({', '.join(map(describe, arguments))})"
  if expected in (list, tuple, collections.abc.Sequence):
    return f"a list of {_PLURALS.get(arguments[:1], 'values')}"
  if expected in (dict, collections.abc.Mapping):
    return "a dictionary"
  return _NAMES.get(expected, getattr(expected, "__name__", str(expected)))
