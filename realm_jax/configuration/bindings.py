"""A configuration as data, and the objects that are made of it.

`NUM_STEPS = 10` sets `num_steps` of whichever class or function of the
configuration has such a parameter, unless `TrainConfig.num_steps` is bound
itself. So a setting is declared once, where it has its type, its default and
its documentation. A parameter whose type is a dataclass of settings, such as
`TrainConfig.data`, is made of such names, too.
"""

import dataclasses
import difflib
import functools
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from realm_jax import settings
from realm_jax.errors import RealmError

UNBOUND = inspect.Parameter.empty
# What the files of gin/models bind.
MODEL = ("RETRIEVER", "READER")
# Packages whose parameters are settings by name.
_PACKAGES = ("realm_jax", "experiments")
Target = Callable[..., Any]


class ConfigurationError(RealmError):
  """A configuration that is wrong, or a run that has none."""


@dataclasses.dataclass(frozen=True)
class Name:
  """`%NAME`: the value that a name is bound to."""

  name: str

  def __repr__(self) -> str:
    return f"%{self.name}"


@dataclasses.dataclass(frozen=True)
class Reference:
  """`@scope/Class()`, the object, or `@scope/function`, not called."""

  target: Target
  scope: str = ""
  is_called: bool = True

  def __repr__(self) -> str:
    place = f"{self.scope}/{self.target.__name__}".strip("/")
    return f"@{place}()" if self.is_called else f"@{place}"


REQUIRED = Name("gin.REQUIRED")


class Parameter(NamedTuple):
  """A parameter of a class or function of the configuration.

  Attributes:
    target: Class or function.
    name: Name of the parameter.
    annotation: Its type.
    default: Its default, or `UNBOUND`.
    value: What is bound to it; the name of the same letters, if that is bound;
      for a dataclass of settings, a reference to it; or else `UNBOUND`.
    has_name: Whether the name of the same letters sets it.
  """

  target: Target
  name: str
  annotation: Any
  default: Any
  value: Any
  has_name: bool

  @property
  def in_capitals(self) -> str:
    """Name that sets it."""
    return self.name.upper()

  @property
  def where(self) -> str:
    """Name for people."""
    return f"{self.target.__name__}.{self.name}"

  @property
  def shared_as(self) -> str | None:
    """Name by which other commands take it from a run, if they do."""
    for mark in getattr(self.annotation, "__metadata__", ()):
      if isinstance(mark, settings.OfRun):
        return mark.name or self.in_capitals
    return None


def leaves(value: Any) -> Iterator[Any]:
  """Yields what lists and dictionaries consist of; of another value, itself."""
  if isinstance(value, dict):
    value = [*value, *value.values()]
  if isinstance(value, (list, tuple)):
    for item in value:
      yield from leaves(item)
  else:
    yield value


def rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
  """Returns a value with changed leaves."""
  if isinstance(value, dict):
    return dict(rebuilt([*value.items()], change))
  if isinstance(value, (list, tuple)):
    return type(value)(rebuilt(item, change) for item in value)
  return change(value)


class Bindings:
  """Values by name, and values of the parameters of classes and functions.

  Values are numbers, texts, lists, dictionaries, `Name` and `Reference`.

  Attributes:
    names: Values by name.
    parameters: Values by parameter, by scope and class or function.
    modules: Modules that the user has named, in flags or gin files.
  """

  def __init__(self) -> None:
    self.names: dict[str, Any] = {}
    self.parameters: dict[tuple[str, Target], dict[str, Any]] = {}
    self.modules: set[str] = set()

  def bind(self, scope: str, target: Target, name: str, value: Any) -> None:
    """Binds a parameter; raises `ConfigurationError` if there is none."""
    known = inspect.signature(target).parameters
    takes_all = any(one.kind is one.VAR_KEYWORD for one in known.values())
    if name not in known and not takes_all:
      near = difflib.get_close_matches(name, known)
      advice = f"; did you mean {', '.join(near)}?" if near else ""
      raise ConfigurationError(
        f"{target.__name__} has no parameter {name!r}{advice}"
      )
    self.parameters.setdefault((scope, target), {})[name] = value

  def build(
    self, target: Target, scope: str = "", /, *given: Any, **named: Any
  ) -> Any:
    """Calls a class or function with what is given and what is bound."""
    signature = inspect.signature(target)
    taken = signature.bind_partial(*given, **named).arguments
    bound, inner = {}, ""
    for part in ["", *filter(None, scope.split("/"))]:
      inner = f"{inner}/{part}".strip("/")
      bound |= {one.name: one.value for one in self._within(inner, target)}
    within = functools.partial(self._made, scope=scope)
    try:
      made = {
        name: rebuilt(value, within)
        for name, value in bound.items()
        if name not in taken and value is not UNBOUND
      }
      return target(*given, **named, **made)
    except RecursionError as error:
      raise ConfigurationError(
        f"what {target.__name__} is made of refers to itself"
      ) from error

  def _made(self, value: Any, scope: str) -> Any:
    """Returns what a bound value, or a part of it, stands for."""
    if isinstance(value, Name):
      within = functools.partial(self._made, scope=value.name)
      return rebuilt(self.names[value.name], within)
    if not isinstance(value, Reference):
      return value
    make = functools.partial(self.build, value.target, value.scope or scope)
    return make() if value.is_called else make

  def followed(self, name: str) -> tuple[str, Any]:
    """Returns the last of the names that refer to each other, and its value."""
    value = self.names.get(name, settings.UNKNOWN)
    if isinstance(value, Name):
      return self.followed(value.name)
    return name, value

  def value_of(self, value: Any) -> Any:
    """Returns a value without names; what is made at a start is UNKNOWN."""

    def known(leaf: Any) -> Any:
      if isinstance(leaf, Name):
        return self.value_of(self.followed(leaf.name)[1])
      return settings.UNKNOWN if isinstance(leaf, Reference) else leaf

    return rebuilt(value, known)

  def reached(self, *values: Any) -> tuple[dict[str, None], list[Target]]:
    """Returns the names and the targets that values lead to, in order.

    A target leads to what is bound to its parameters in any scope, and to the
    names and dataclasses that its other parameters are made of.
    """
    names, targets, waiting = {}, {}, [*values]
    while waiting:
      for one in leaves(waiting.pop(0)):
        if isinstance(one, Name) and one.name not in names:
          names[one.name] = None
          waiting.append(self.names.get(one.name))
        if isinstance(one, Reference) and one.target not in targets:
          targets[one.target] = None
          waiting += [of.value for of in self.parameters_of(one.target)]
    return names, [*targets]

  def all_targets(self) -> list[Target]:
    """Returns those that are bound or referred to, and what they lead to."""
    bound = [Reference(target) for _, target in self.parameters]
    return self.reached(*bound, *self.names.values())[1]

  def all_parameters(self) -> Iterator[Parameter]:
    """Yields the parameters of all targets."""
    for target in self.all_targets():
      yield from self.parameters_of(target)

  def parameters_of(self, target: Target) -> Iterator[Parameter]:
    """Yields what is bound in any scope, and at last what has no scope."""
    scopes = [scope for scope, other in self.parameters if other == target]
    for scope in [*filter(None, scopes), ""]:
      yield from self._within(scope, target)

  def _within(self, scope: str, target: Target) -> Iterator[Parameter]:
    """Yields what is bound in a scope; without one, all settings as well."""
    bound = self.parameters.get((scope, target), {})
    kinds = {**dict.fromkeys(bound, Any), **settings.parameter_types(target)}
    defaults = {} if scope else _defaults(target)
    for name, kind in kinds.items():
      value = bound.get(name, UNBOUND)
      is_setting = name in defaults and not settings.is_unnamed(kind)
      if value is UNBOUND and not is_setting:
        continue
      by_name = Name(name.upper())
      if value is UNBOUND and inspect.isclass(kind) and _is_group(kind):
        value = Reference(kind)
      elif value is UNBOUND and by_name.name in self.names:
        value = by_name
      has_name = is_setting and value in (UNBOUND, by_name)
      default = defaults.get(name, UNBOUND)
      yield Parameter(target, name, kind, default, value, has_name)

  def used_names(self) -> dict[str, bool]:
    """Returns the names that are used, and whether each must be set."""
    used = {
      one.in_capitals: one.default is UNBOUND
      for one in self.all_parameters()
      if one.has_name
    }
    values = [*self.names.values(), *self.parameters.values()]
    referred = [one for one in leaves(values) if isinstance(one, Name)]
    needed = {one.name: True for one in referred if one != REQUIRED}
    return used | needed

  def table(self) -> str:
    """Returns all names, each with its value or default, type and meaning."""
    lines = {}
    named = [one for one in self.all_parameters() if one.has_name]
    for one in sorted(named, key=lambda one: one.where):
      value = self.names.get(one.in_capitals, one.default)
      shown = "is required" if value is UNBOUND else f"= {value!r}"
      kind = settings.describe(one.annotation)
      line = f"{one.in_capitals} {shown} ({kind}; {one.where})"
      if text := meaning(one.target, one.name):
        line += f"\n    {text}"
      lines[one.in_capitals] = line
    return "\n".join(lines.values())


def _has_settings(target: Target) -> bool:
  """Whether the parameters of a class or function are settings by name.

  Those of flax's modules are the model's, which its gin file binds, and those
  of other libraries, such as t5x, have meanings of their own.
  """
  is_ours = any(
    one.__module__.partition(".")[0] in _PACKAGES for one in _with_bases(target)
  )
  return is_ours and not hasattr(target, "apply")


def _is_group(kind: type) -> bool:
  """Whether a class is a dataclass of settings, made of their names."""
  return dataclasses.is_dataclass(kind) and _has_settings(kind)


def _defaults(target: Target) -> dict[str, Any]:
  """Returns the defaults of the parameters that are settings by name."""
  return {
    name: one.default
    for name, one in inspect.signature(target).parameters.items()
    if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    and _has_settings(target)
  }


def meaning(target: Target, name: str) -> str:
  """Returns the first sentence that a docstring has about a parameter."""
  described = re.compile(
    rf"^  (?:\w+, )*{name}(?:, \w+)*: "
    r"(.*?)(?=\n  \w|\n\S|\n\n|\Z)",
    re.MULTILINE | re.DOTALL,
  )
  for one in _with_bases(target):
    if found := described.search(inspect.cleandoc(one.__doc__ or "")):
      return " ".join(found.group(1).split()).partition(". ")[0].rstrip(".")
  return ""


def _with_bases(target: Target) -> tuple[Any, ...]:
  """Returns a function, or a class and those that it extends."""
  return inspect.getmro(target) if inspect.isclass(target) else (target,)
