"""A configuration as data, and the objects that are built from it.

`NUM_STEPS = 10` sets the parameter `num_steps` of every class or function of
the configuration, unless `TrainConfig.num_steps` is bound itself. So a setting
is declared once, with its type, default and documentation. A parameter whose
type is a dataclass of settings, such as `TrainConfig.data`, is built from such
names as well.
"""

import dataclasses
import difflib
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from realm_jax import settings
from realm_jax.errors import RealmError

UNBOUND = inspect.Parameter.empty
# Packages whose parameters are settings by name.
_PACKAGES = ("realm_jax.", "experiments.")
Target = Callable[..., Any]


class ConfigurationError(RealmError):
  """A configuration is wrong, or a run has none."""


@dataclasses.dataclass(frozen=True)
class Name:
  """`%NAME`: the value of a name."""

  name: str

  def __repr__(self) -> str:
    return f"%{self.name}"


REQUIRED = Name("gin.REQUIRED")


@dataclasses.dataclass(frozen=True)
class Reference:
  """A reference: `@scope/Class()`, an object, or `@scope/function`, uncalled.

  Attributes:
    kept: Values of a run's saved object, which replace the defaults.
  """

  target: Target
  scope: str = ""
  is_called: bool = True
  kept: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __repr__(self) -> str:
    place = f"{self.scope}/{self.target.__name__}".strip("/")
    return f"@{place}()" if self.is_called else f"@{place}"


class Parameter(NamedTuple):
  """A parameter of a class or function of the configuration.

  Attributes:
    target: Class or function.
    name: Name of the parameter.
    annotation: Type of the parameter.
    default: Default of the parameter, or `UNBOUND`.
    value: Bound value or reference, or `UNBOUND` for the default.
    key: Name that sets the parameter; None if no name does.
  """

  target: Target
  name: str
  annotation: Any
  default: Any
  value: Any
  key: str | None

  @property
  def where(self) -> str:
    """Name of the parameter in messages."""
    return f"{self.target.__name__}.{self.name}"


def rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
  """Applies a function to a value, or to items of lists and dictionaries."""
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
    parameters: Values by scope and class or function, then by parameter.
    modules: Modules that the user listed in flags or gin files.
    root: Class or function to build, with the run's saved values.
  """

  def __init__(self, modules: Iterable[str] = ()) -> None:
    self.names: dict[str, Any] = {}
    self.parameters: dict[tuple[str, Target], dict[str, Any]] = {}
    self.modules = {*modules}
    self.root = Reference(object)

  def bind(self, scope: str, target: Target, name: str, value: Any) -> None:
    """Binds a parameter; raises a `ConfigurationError` if it does not exist."""
    known = inspect.signature(target).parameters
    takes_all = any(one.kind is one.VAR_KEYWORD for one in known.values())
    if name not in known and not takes_all:
      near = ", ".join(difflib.get_close_matches(name, known))
      advice = f"; did you mean {near}?" if near else ""
      raise ConfigurationError(
        f"{target.__name__} has no parameter {name!r}{advice}"
      )
    self.parameters.setdefault((scope, target), {})[name] = value

  def build(self, target: Target, **arguments: Any) -> Any:
    """Calls a class or function with these and all bound arguments."""
    is_root = target is self.root.target
    reference = self.root if is_root else Reference(target)
    return self.configured(reference, **arguments)()

  def configured(
    self, reference: Reference, *args: Any, **kwargs: Any
  ) -> Callable[[], Any]:
    """Returns the target of a reference with its arguments, not yet called."""
    signature = inspect.signature(reference.target)
    arguments = signature.bind_partial(*args, **kwargs).arguments
    try:
      bound = {
        parameter.name: self.resolved(
          parameter.value, self._build, reference.scope
        )
        for parameter in self.parameters_of(reference)
        if parameter.name not in arguments and parameter.value is not UNBOUND
      }
    except RecursionError as error:
      raise ConfigurationError(
        f"what {reference.target.__name__} is made of refers to itself"
      ) from error
    return functools.partial(reference.target, *args, **kwargs, **bound)

  def _build(self, reference: Reference) -> Any:
    if reference.is_called:
      return self.configured(reference)()
    return lambda *args, **kwargs: self.configured(reference, *args, **kwargs)()

  def resolved(
    self, value: Any, make: Callable[[Reference], Any], scope: str = ""
  ) -> Any:
    """Replaces names by their values, and references by `make(reference)`."""

    def of(leaf: Any) -> Any:
      if isinstance(leaf, Name):
        bound = self.names.get(leaf.name, settings.UNKNOWN)
        return self.resolved(bound, make, leaf.name)
      if isinstance(leaf, Reference):
        return make(dataclasses.replace(leaf, scope=leaf.scope or scope))
      return leaf

    return rebuilt(value, of)

  def parameters_of(self, reference: Reference) -> Iterator[Parameter]:
    """Yields parameters bound in a scope or globally, and all settings."""
    bound, inner = {}, ""
    for part in ["", *filter(None, reference.scope.split("/"))]:
      inner = f"{inner}/{part}".strip("/")
      bound |= self.parameters.get((inner, reference.target), {})
    types = settings.parameter_types(reference.target)
    defaults = _defaults(reference.target)
    for name in {**bound, **reference.kept, **defaults}:
      annotation, default = types.get(name, Any), defaults.get(name, UNBOUND)
      key = None
      if name in reference.kept or name in defaults:
        mark = settings.mark_of(annotation, settings.Named)
        key = mark.name if mark else name.upper()
      value = reference.kept.get(name, UNBOUND)
      if name in bound:
        value, key = bound[name], None
      elif dataclasses.is_dataclass(annotation) and _defaults(annotation):
        # A group of settings.
        value, key = reference.kept.get(name, Reference(annotation)), None
      elif key in self.names:
        value = Name(str(key))
      if isinstance(value, Name) and value != REQUIRED:
        key = value.name
      yield Parameter(reference.target, name, annotation, default, value, key)

  def all_parameters(self) -> list[Parameter]:
    """Returns the parameters of the root and of all objects it refers to."""
    seen: list[Reference] = []
    parameters: list[Parameter] = []

    def visit(reference: Reference) -> None:
      if reference not in seen:
        seen.append(reference)
        for parameter in self.parameters_of(reference):
          parameters.append(parameter)
          self.resolved(parameter.value, visit, reference.scope)

    self.resolved([self.root, *map(Name, self.names)], visit)
    for scope, target in self.parameters:
      if target not in [one.target for one in seen]:
        visit(Reference(target, scope))
    return parameters

  def used_names(self) -> dict[str, bool]:
    """Returns the names in use, and whether each must be bound."""
    used: dict[str, bool] = {}
    for one in self.all_parameters():
      if one.key:
        is_needed = one.value is UNBOUND and one.default is UNBOUND
        used[one.key] = is_needed or used.get(one.key, False)

    def see(leaf: Any) -> None:
      if isinstance(leaf, Name) and leaf != REQUIRED:
        used[leaf.name] = True

    rebuilt([*self.names.values(), *self.parameters.values()], see)
    return used

  def table(self) -> str:
    """Returns all names, each with its value or default, type and meaning."""
    lines = {}
    named = [one for one in self.all_parameters() if one.key]
    for one in sorted(named, key=lambda one: one.where):
      value = one.default if one.value is UNBOUND else one.value
      value = self.names.get(str(one.key), value)
      shown = "is required" if value is UNBOUND else f"= {value!r}"
      kind = settings.describe(one.annotation)
      lines[one.key] = f"{one.key} {shown} ({kind}; {one.where})"
      if text := meaning(one.target, one.name):
        lines[one.key] += f"\n    {text}"
    return "\n".join(lines.values())


def is_module(target: Target) -> bool:
  """Whether a class is a module of flax's."""
  return hasattr(target, "apply")


@functools.cache
def _defaults(target: Target) -> dict[str, Any]:
  """Returns the defaults of the parameters that are settings by name.

  Parameters of Flax modules are excluded, because the model's gin file binds
  them. Parameters of other libraries, such as t5x, are also excluded.
  """
  places = [one.__module__ for one in _with_bases(target)]
  is_ours = any(place.startswith(_PACKAGES) for place in places)
  return {
    name: one.default
    for name, one in inspect.signature(target).parameters.items()
    if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    and is_ours
    and not is_module(target)
  }


def meaning(target: Target, name: str) -> str:
  """Returns the first sentence about a parameter in a docstring."""
  described = re.compile(
    rf"^  (?:\w+, )*{name}(?:, \w+)*: "
    r"(.*?)(?=\n  \w|\n\S|\n\n|\Z)",
    re.MULTILINE | re.DOTALL,
  )
  for documented in _with_bases(target):
    if match := described.search(inspect.cleandoc(documented.__doc__ or "")):
      return " ".join(match.group(1).split()).partition(". ")[0].rstrip(".")
  return ""


def _with_bases(target: Target) -> tuple[Any, ...]:
  """Returns a function, or a class and its base classes."""
  return inspect.getmro(target) if inspect.isclass(target) else (target,)
