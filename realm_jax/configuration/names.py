"""Settings by name: a parameter takes the value of the macro of its name.

`NUM_STEPS = 10` in a gin file, or `--gin.NUM_STEPS=10`, sets `num_steps` of
whichever class or function of the configuration has such a parameter, unless a
file binds `TrainConfig.num_steps` itself. So a setting is declared once, where
it has its type, its default and its documentation.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gin
from realm_jax import settings

MACRO = "gin.macro"
CONFIG = gin.config._CONFIG  # gin has no public way to list its bindings.


class Parameter(NamedTuple):
  """A parameter that the macro of its name sets, if there is one.

  Attributes:
    selector: gin's name of the class or function.
    configurable: The class or function.
    name: Name of the parameter.
    annotation: Its type.
    default: Its default; `inspect.Parameter.empty` where it has none.
    is_bound: Whether it is bound to the macro already.
  """

  selector: str
  configurable: Callable[..., Any]
  name: str
  annotation: Any
  default: Any
  is_bound: bool

  @property
  def macro(self) -> str:
    """Name of the macro that sets it."""
    return self.name.upper()

  @property
  def where(self) -> str:
    """Name for people."""
    return f"{self.configurable.__name__}.{self.name}"

  @property
  def reference(self) -> gin.config.ConfigurableReference:
    """`%NAME`, as gin keeps it."""
    return gin.config.ConfigurableReference(f"{self.macro}/{MACRO}", True)


# What the files of gin/models bind; recipes say which of them a command needs.
MODEL = ("RETRIEVER", "READER")


def configurable(selector: str) -> Callable[..., Any]:
  """Returns the class or function that gin knows by a selector."""
  # gin has no public way to get at the function that it has wrapped.
  return gin.config._REGISTRY[selector].wrapped


def parameters() -> Iterator[Parameter]:
  """Yields the parameters that macros may set, of all that files refer to."""
  bound = {selector for _, selector in CONFIG}
  references: Iterator[Any] = gin.config.iterate_references(CONFIG)
  referred = {
    one.configurable.selector for one in references if one.configurable
  }
  for selector in sorted(bound | referred):
    found = configurable(selector)
    if not _has_settings(found):
      continue
    types = settings.parameter_types(found)
    bindings = CONFIG.get(("", selector), {})
    for name, parameter in inspect.signature(found).parameters.items():
      if name not in types or settings.is_unnamed(types[name]):
        continue
      one = Parameter(
        selector, found, name, types[name], parameter.default, name in bindings
      )
      if one.macro in MODEL or dataclasses.is_dataclass(one.default):
        continue
      if not one.is_bound or _is_macro(bindings[name], one.macro):
        yield one


def _is_macro(value: Any, name: str) -> bool:
  is_reference = isinstance(value, gin.config.ConfigurableReference)
  return is_reference and value.scoped_selector == f"{name}/{MACRO}"


def _has_settings(configurable: Callable[..., Any]) -> bool:
  """Whether the parameters of a class or function are settings by name.

  Those of flax's modules are the model's, which its gin file binds, and those
  of other libraries, such as t5x, have meanings of their own.
  """
  is_ours = any(
    one.__module__.partition(".")[0] == __name__.partition(".")[0]
    for one in _with_bases(configurable)
  )
  return is_ours and not hasattr(configurable, "apply")


def bind() -> None:
  """Binds the parameters to those macros of their names that are set."""
  are_set = {name for name, selector in CONFIG if selector == MACRO}
  # What a macro refers to may have parameters of its own.
  while found := [
    one for one in parameters() if one.macro in are_set and not one.is_bound
  ]:
    for one in found:
      gin.bind_parameter(f"{one.selector}.{one.name}", one.reference)


def table() -> str:
  """Returns all names, each with its value or default, type and meaning."""
  lines = {}
  for one in sorted(parameters(), key=lambda one: one.where):
    value = CONFIG.get((one.macro, MACRO), {}).get("value", one.default)
    is_required = value is inspect.Parameter.empty
    shown = "is required" if is_required else f"= {value!r}"
    kind = settings.describe(one.annotation)
    lines[one.macro] = f"{one.macro} {shown} ({kind}; {one.where})"
    if meaning := _meaning(one):
      lines[one.macro] += f"\n    {meaning}"
  return "\n".join(lines.values())


def _meaning(parameter: Parameter) -> str:
  """Returns the first sentence that a docstring has about a parameter."""
  described = re.compile(
    rf"^  (?:\w+, )*{parameter.name}(?:, \w+)*: "
    r"(.*?)(?=\n  \w|\n\S|\n\n|\Z)",
    re.MULTILINE | re.DOTALL,
  )
  for one in _with_bases(parameter.configurable):
    if found := described.search(inspect.cleandoc(one.__doc__ or "")):
      return " ".join(found.group(1).split()).partition(". ")[0].rstrip(".")
  return ""


def _with_bases(configurable: Callable[..., Any]) -> tuple[Any, ...]:
  """Returns a function, or a class and those that it extends."""
  if inspect.isclass(configurable):
    return inspect.getmro(configurable)
  return (configurable,)
