"""Settings by name: a parameter takes the value of the macro of its name.

`NUM_STEPS = 10` in a gin file, or `--gin.NUM_STEPS=10`, sets `num_steps` of
whichever class or function of the configuration has such a parameter, unless a
file binds `TrainConfig.num_steps` itself. So a setting is declared once, where
it has its type, its default and its documentation. A parameter whose type is a
dataclass of settings, such as `TrainConfig.data`, is made of such names, too.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeGuard

import gin
from realm_jax import settings

MACRO = "gin.macro"
CONFIG = gin.config._CONFIG  # gin has no public way to list its bindings.
UNBOUND = inspect.Parameter.empty
_Reference = gin.config.ConfigurableReference
# Packages whose parameters are settings by name.
_PACKAGES = ("realm_jax", "experiments")


class Parameter(NamedTuple):
  """A parameter of a class or function of the configuration.

  Without a default or a binding, these are `UNBOUND`. The macro of its name
  sets it, if there is one, unless it is a dataclass of settings, which is made
  of the names of its own fields: `has_name` is False then.
  """

  configurable: Callable[..., Any]
  name: str
  annotation: Any
  default: Any
  bound: Any
  has_name: bool

  @property
  def macro(self) -> str:
    """Name of the macro that sets it."""
    return self.name.upper()

  @property
  def where(self) -> str:
    """Name for people."""
    return f"{self.configurable.__name__}.{self.name}"


def selector_of(function: Callable[..., Any]) -> str:
  """Returns gin's name of a class or function, which may be new to it."""
  # gin has no public way to find a name.
  if function not in gin.config._INVERSE_REGISTRY:
    with gin.unlock_config():
      gin.external_configurable(function, module=function.__module__)
  return gin.config._INVERSE_REGISTRY[function].selector


def is_macro(value: Any) -> TypeGuard[_Reference]:
  """Returns whether a bound value is `%NAME`."""
  return isinstance(value, _Reference) and value.selector == MACRO


def macros() -> dict[str, Any]:
  """Returns the values of the macros that are set."""
  return {
    name: bound["value"]
    for (name, selector), bound in CONFIG.items()
    if selector == MACRO
  }


def parameters() -> Iterator[Parameter]:
  """Yields what is bound, and the settings of all that is referred to."""
  references: Iterator[Any] = gin.config.iterate_references(CONFIG)
  referred = {
    ("", one.configurable.selector) for one in references if one.configurable
  }
  for scope, selector in sorted(referred.union(CONFIG)):
    yield from _parameters_of(selector, scope)


def _parameters_of(selector: str, scope: str = "") -> Iterator[Parameter]:
  # gin has no public way to get at the function that it has wrapped.
  found = gin.config._REGISTRY[selector].wrapped
  bindings = CONFIG.get((scope, selector), {})
  is_ours = not scope and _has_settings(found)
  signature = inspect.signature(found).parameters if is_ours else {}
  for name, kind in settings.parameter_types(found).items():
    bound = bindings.get(name, UNBOUND)
    is_setting = name in signature and not settings.is_unnamed(kind)
    if bound is not UNBOUND:
      is_setting &= is_macro(bound) and bound.scopes[-1] == name.upper()
    elif not is_setting:
      continue
    else:
      is_setting = not _is_dataclass_of_settings(kind)
    default = signature[name].default if name in signature else UNBOUND
    yield Parameter(found, name, kind, default, bound, has_name=is_setting)


def _is_dataclass_of_settings(kind: Any) -> bool:
  is_dataclass = isinstance(kind, type) and dataclasses.is_dataclass(kind)
  return is_dataclass and _has_settings(kind)


def required(function: Callable[..., Any]) -> set[str]:
  """Returns the names that a function cannot be called without."""
  return {
    one.macro
    for one in _parameters_of(selector_of(function))
    if one.has_name and one.default is UNBOUND
  }


def _has_settings(configurable: Callable[..., Any]) -> bool:
  """Whether the parameters of a class or function are settings by name.

  Those of flax's modules are the model's, which its gin file binds, and those
  of other libraries, such as t5x, have meanings of their own.
  """
  is_ours = any(
    one.__module__.partition(".")[0] in _PACKAGES
    for one in _with_bases(configurable)
  )
  return is_ours and not hasattr(configurable, "apply")


def bind(
  function: Callable[..., Any] | None = None, *, given: Iterable[str] = ()
) -> None:
  """Binds what no file binds: to the macro of its name, or to its dataclass.

  It does so for a function that is to be configured, but for the parameters
  that its caller has `given`, and for all that is bound or referred to.
  """
  if function is not None:
    bindings = CONFIG.setdefault(("", selector_of(function)), {})
    bindings |= dict.fromkeys(given, settings.UNKNOWN)
  # What is bound may have parameters of its own.
  while found := [
    one
    for one in parameters()
    if one.bound is UNBOUND and (not one.has_name or one.macro in macros())
  ]:
    for one in found:
      made = f"{one.macro}/{MACRO}"
      if not one.has_name:
        made = selector_of(one.annotation)
      selector = selector_of(one.configurable)
      gin.bind_parameter(f"{selector}.{one.name}", _Reference(made, True))


def table() -> str:
  """Returns all names, each with its value or default, type and meaning."""
  lines, are_set = {}, macros()
  named = [one for one in parameters() if one.has_name]
  for one in sorted(named, key=lambda one: one.where):
    value = are_set.get(one.macro, one.default)
    shown = "is required" if value is UNBOUND else f"= {value!r}"
    kind = settings.describe(one.annotation)
    lines[one.macro] = f"{one.macro} {shown} ({kind}; {one.where})"
    if text := meaning(one.configurable, one.name):
      lines[one.macro] += f"\n    {text}"
  return "\n".join(lines.values())


def meaning(configurable: Callable[..., Any], name: str) -> str:
  """Returns the first sentence that a docstring has about a parameter."""
  described = re.compile(
    rf"^  (?:\w+, )*{name}(?:, \w+)*: "
    r"(.*?)(?=\n  \w|\n\S|\n\n|\Z)",
    re.MULTILINE | re.DOTALL,
  )
  for one in _with_bases(configurable):
    if found := described.search(inspect.cleandoc(one.__doc__ or "")):
      return " ".join(found.group(1).split()).partition(". ")[0].rstrip(".")
  return ""


def _with_bases(configurable: Callable[..., Any]) -> tuple[Any, ...]:
  """Returns a function, or a class and those that it extends."""
  if inspect.isclass(configurable):
    return inspect.getmro(configurable)
  return (configurable,)
