"""gin files and bindings: parsed for a `with` block, and checked."""

import ast
import contextlib
import difflib
import importlib.util  # noqa: F401  gin reads it without importing it.
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from etils import epath

import gin
from realm_jax import settings
from realm_jax.configuration import names
from realm_jax.configuration.names import CONFIG, MACRO

_Result = TypeVar("_Result")
_Function = Callable[..., Any]

# What the files of gin/models bind.
MODEL = ("RETRIEVER", "READER")
_GIN_ADDITION = "\n  In call to configurable"
_REQUIRED = "gin.REQUIRED/gin.constant"  # What `%gin.REQUIRED` refers to.
_NO_MODEL = (
  "a model is missing: pass the gin file of one, such as "
  "--gin_file=gin/models/bert_base.gin"
)
# What a literal or a reference of gin's begins with, other than a number, True,
# False and None.
_OF_GIN = ("%", "@", '"', "'", "[", "{", "(")
# What gin raises for text that it cannot read, and for names that are unknown.
_GIN_ERRORS = (
  OSError,
  SyntaxError,
  tokenize.TokenError,
  ValueError,
  ImportError,
  AttributeError,
  NameError,
)
# The clone's root, so that `gin/runs/…` is found from any working directory,
# and where the recipes are once the package is installed without a clone.
_PROJECT_DIR = Path(__file__).resolve().parent.parent.parent
_INSTALLED_RECIPES = _PROJECT_DIR / "realm_jax" / "recipes"
# What gin keeps of the files and bindings that it has read. It has no public
# way to set this aside.
_STATE = (
  "_CONFIG",
  "_IMPORTS",
  "_OPERATIVE_CONFIG",
  "_SINGLETONS",
  "_FILE_READERS",
  "_LOCATION_PREFIXES",
)


class ConfigurationError(ValueError):
  """A gin file or binding that is wrong, or a run that has none."""


@contextlib.contextmanager
def own_configuration() -> Iterator[None]:
  """Gives the `with` block an empty configuration, and restores the caller's.

  Classes and functions that gin files have named stay registered with gin,
  which binds nothing.
  """
  state: list[Any] = [getattr(gin.config, name) for name in _STATE]
  kept = [value.copy() for value in state]
  was_locked = gin.config_is_locked()
  gin.clear_config()
  try:
    yield
  finally:
    for current, before in zip(state, kept, strict=True):
      # In place, because gin's functions refer to these very objects.
      current.clear()
      add = current.extend if isinstance(current, list) else current.update
      add(before)
    gin.config._set_config_is_locked(was_locked)


@contextlib.contextmanager
def parsed(
  function: _Function | None,
  gin_files: Sequence[str],
  bindings: Sequence[str] = (),
  *,
  given: Iterable[str] = (),
) -> Iterator[None]:
  """Sets gin's configuration during a `with` block, and restores it then.

  Later files override earlier ones, and bindings (`NAME = VALUE`) all files.
  The function is the one that `configured` then returns, and None for what the
  files bind alone; its caller gives it the parameters `given`.

  Raises:
    ConfigurationError: A file is missing, a binding names nothing, a value
      cannot be read or has the wrong type, or a required value is not given.
  """
  with own_configuration():
    with _explained():
      _read(function, gin_files, given)
      # A binding may replace what has a name by what has none.
      used = _used_names()
      gin.parse_config(_readable(bindings))
      names.bind()
      _require_names(bindings, used)
      _require_types()
      gin.finalize()
    yield


def names_in(gin_files: Sequence[str]) -> set[str]:
  """Returns the names that gin files bind; raises as `parsed` does."""
  with own_configuration(), _explained():
    _read(None, gin_files)
    return {*names.macros()}


def table_of_names(function: _Function, gin_files: Sequence[str]) -> str:
  """Returns the names that may be set, with values and meanings, for people."""
  with own_configuration(), _explained():
    _read(function, gin_files)
    return names.table()


@contextlib.contextmanager
def _explained() -> Iterator[None]:
  try:
    yield
  except ConfigurationError:
    raise
  except _GIN_ERRORS as error:
    raise ConfigurationError(
      f"the gin configuration is wrong: {error}"
    ) from error


def _read(
  function: _Function | None,
  gin_files: Sequence[str],
  given: Iterable[str] = (),
) -> None:
  """Reads gin files, local ones and those of object stores."""
  gin.add_config_file_search_path(str(_PROJECT_DIR))
  # The only reader: gin's own look for each file in Python packages, too, and
  # log an error for each folder in which there is none.
  readers: list[Any] = gin.config._FILE_READERS
  readers[:] = [
    (
      lambda path: _located(path).open("r"),
      lambda path: _located(path).is_file(),
    )
  ]
  gin.parse_config_files_and_bindings(
    gin_files, [], finalize_config=False, print_includes_and_imports=False
  )
  names.bind(function, given=given)


def _located(path: str) -> epath.Path:
  """Returns a path to which gin has prefixed a folder that it searches."""
  if (start := path.find("gs://")) >= 0:
    return epath.Path(path[start:])
  recipes = f"{_PROJECT_DIR}/gin/"
  if path.startswith(recipes) and _INSTALLED_RECIPES.is_dir():
    return epath.Path(_INSTALLED_RECIPES / path.removeprefix(recipes))
  return epath.Path(path)


def _used_names() -> dict[str, bool]:
  """Returns the names that are used, and whether each must be set."""
  used = {
    one.macro: one.default is names.UNBOUND
    for one in names.parameters()
    if one.has_name
  }
  macro = gin.config.get_configurable(MACRO)
  for reference in gin.config.iterate_references(CONFIG, to=macro):
    used[reference.scopes[-1]] = True
  return used


def _require_names(bindings: Sequence[str], before: Iterable[str]) -> None:
  """Checks that bindings bind used names, and that no name lacks a value.

  Names that are used no more, but were `before` the bindings, may be bound.
  """
  used, macros = _used_names(), names.macros()
  missing = {name for name, is_needed in used.items() if is_needed} - {*macros}
  missing |= {
    name
    for name, value in macros.items()
    if getattr(value, "scoped_selector", None) == _REQUIRED
  }
  known = {*used, *before}
  bound = (binding.partition("=")[0].strip() for binding in bindings)
  unknown = [name for name in bound if "." not in name and name not in known]
  if unknown:
    problem = f"--gin.{unknown[0]} binds a name that no gin file uses"
    advice = "--gin_help shows the names"
    if near := difflib.get_close_matches(unknown[0], known):
      advice = f"did you mean {', '.join(near)}?"
  elif missing:
    listed = sorted(missing)
    problem = f"no value for {', '.join(listed)}"
    advice = " ".join(f"--gin.{name}=VALUE" for name in listed)
    advice = f"pass {advice} or a --gin_file that binds it"
  else:
    return
  if missing & {*MODEL}:
    advice = _NO_MODEL
  raise ConfigurationError(f"{problem}; {advice}")


def _readable(bindings: Sequence[str]) -> list[str]:
  """Returns bindings as gin reads them: a text gets its quotes.

  A value that is neither a literal nor a reference is a text, such as
  `runs/ict`.
  """
  readable = []
  for binding in bindings:
    name, _, value = (part.strip() for part in binding.partition("="))
    if not value:
      raise ConfigurationError(
        f"--gin.{name}= has no value; write --gin.{name}=VALUE"
      )
    known = {*names.macros(), *_used_names()}
    if value.startswith("%") and value[1:] not in known:
      near = difflib.get_close_matches(value[1:], known)
      wanted = [f"%{one}" for one in near] or _references() or sorted(known)
      raise ConfigurationError(
        f"--gin.{name}={value}: no gin file binds {value[1:]}; want "
        + " or ".join(wanted)
      )
    if not value.startswith(_OF_GIN):
      try:
        ast.literal_eval(value)
      except (SyntaxError, ValueError):
        value = repr(value)
    readable.append(f"{name} = {value}")
  return readable


def _references() -> list[str]:
  """Returns the macros that refer to objects, as `%NAME`."""
  return sorted(
    f"%{name}"
    for name, bound in names.macros().items()
    if isinstance(bound, gin.config.ConfigurableReference) and bound.evaluate
  )


def _resolved(bound: Any, macros: Mapping[str, Any]) -> Any:
  """Returns a bound value with the values of macros, which may be unknown."""
  if names.is_macro(bound):
    return _resolved(macros.get(bound.scopes[-1], settings.UNKNOWN), macros)
  if isinstance(bound, gin.config.ConfigurableReference):
    return settings.UNKNOWN
  if isinstance(bound, (list, tuple)):
    return [_resolved(item, macros) for item in bound]
  if isinstance(bound, dict):
    return dict(_resolved([*bound.items()], macros))
  return bound


def _require_types() -> None:
  """Checks bound values against the annotations of their parameters."""
  macros = names.macros()
  for use in names.parameters():
    name, bound = None, use.bound
    while names.is_macro(bound):
      name = bound.scopes[-1]
      bound = macros.get(name, settings.UNKNOWN)
    value = _resolved(bound, macros)
    if bound is names.UNBOUND or settings.accepts(use.annotation, value):
      continue
    wanted = settings.describe(use.annotation)
    if settings.takes_objects(use.annotation):
      wanted += f", such as one of {', '.join(_references())}"
    if name is None:
      raise ConfigurationError(f"{use.where}={value!r}: want {wanted}")
    raise ConfigurationError(
      f"{name}={value!r}: {use.where} wants {wanted}; pass --gin.{name}=VALUE"
    )


def configured(function: Callable[..., _Result]) -> Callable[..., _Result]:
  """Returns a function with the arguments that the configuration binds."""
  names.selector_of(function)
  return gin.get_configurable(function)


def message_of(error: Exception) -> str:
  """Returns an error's message without gin's description of the call."""
  return str(error).partition(_GIN_ADDITION)[0]
