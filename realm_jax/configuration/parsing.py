"""gin files and bindings: parsed for a `with` block, and checked."""

import ast
import contextlib
import difflib
import importlib.util  # noqa: F401  gin reads it without importing it.
import shlex
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import gin
from realm_jax import settings
from realm_jax.configuration import names
from realm_jax.configuration.errors import ConfigurationError
from realm_jax.configuration.gin_state import own_configuration, read_files_as
from realm_jax.configuration.names import CONFIG, MACRO, MODEL

_Result = TypeVar("_Result")

_GIN_ADDITION = "\n  In call to configurable"
_REQUIRED = "gin.REQUIRED/gin.constant"  # What `%gin.REQUIRED` refers to.
_NOT_GIVEN = object()
_NO_MODEL = (
  "a model is missing: pass the gin file of one, such as "
  "--gin_file=gin/models/bert_base.gin"
)
# What a literal or a reference of gin's begins with, other than a number, True,
# False and None.
_OF_GIN = ("%", "@", '"', "'", "[", "{", "(")
_NO_FILE = "(not given)"
# Longer than any binding, so that gin divides none into lines.
_MAX_LINE_LENGTH = 10_000
# What gin raises for text that it cannot read, and for names that are unknown.
GIN_ERRORS = (
  OSError,
  SyntaxError,
  tokenize.TokenError,
  ValueError,
  ImportError,
  AttributeError,
  NameError,
)
# The clone's root, so that `gin/runs/…` is found from any working directory.
_PROJECT_DIR = str(Path(__file__).resolve().parent.parent.parent)


class _Use(NamedTuple):
  """A parameter, or an item of its value, and its annotated type."""

  where: str
  annotation: Any


def _macros() -> dict[str, Any]:
  """Returns the value of each macro that is set or used, or `_NOT_GIVEN`."""
  values = dict.fromkeys(_used_macros(), _NOT_GIVEN)
  for (name, selector), bound in CONFIG.items():
    if selector == MACRO:
      value = bound.get("value")
      is_required = getattr(value, "scoped_selector", None) == _REQUIRED
      values[name] = _NOT_GIVEN if is_required else value
  return values


def _used_macros() -> set[str]:
  macro = gin.config.get_configurable(MACRO)
  used = gin.config.iterate_references(CONFIG, to=macro)
  return {reference.scopes[-1] for reference in used}


def _require_known_macros(bindings: Sequence[str]) -> None:
  known = _macros() | {one.macro: None for one in names.parameters()}
  for binding in bindings:
    name = binding.partition("=")[0].strip()
    if "." in name or name in known:
      continue
    unused = f"--gin.{name} binds a name that no gin file uses"
    if any(known.get(model) is _NOT_GIVEN for model in MODEL):
      raise ConfigurationError(f"{unused}; {_NO_MODEL}")
    if near := difflib.get_close_matches(name, known):
      raise ConfigurationError(f"{unused}; did you mean {', '.join(near)}?")
    raise ConfigurationError(f"{unused}; --gin_help shows the names")


def _missing_macros() -> list[str]:
  return sorted(n for n, value in _macros().items() if value is _NOT_GIVEN)


def _require_given_macros() -> None:
  """Reports all values that the gin files leave to the command line."""
  missing = _missing_macros()
  if {*missing} & {*MODEL}:
    raise ConfigurationError(f"no value for {', '.join(missing)}; {_NO_MODEL}")
  if missing:
    raise ConfigurationError(
      f"no value for {', '.join(missing)}; pass "
      + " ".join(f"--gin.{name}=VALUE" for name in missing)
      + " or a --gin_file that binds it"
    )


def _uses(macros: Mapping[str, Any]) -> dict[str, list[_Use]]:
  """Returns the parameters and items that each macro is a value of."""
  uses: dict[str, list[_Use]] = {}

  def add(bound: Any, use: _Use) -> None:
    if isinstance(bound, gin.config.ConfigurableReference):
      if bound.selector == MACRO:
        name = bound.scopes[-1]
        uses.setdefault(name, []).append(use)
        add(macros.get(name), use)
    else:
      for item, annotation in settings.item_types(use.annotation, bound):
        add(item, use._replace(annotation=annotation))

  for (_, selector), bindings in CONFIG.items():
    configurable = names.configurable(selector)
    types = settings.parameter_types(configurable)
    for parameter in bindings.keys() & types.keys():
      where = f"{configurable.__name__}.{parameter}"
      add(bindings[parameter], _Use(where, types[parameter]))
  for one in names.parameters():
    if not one.is_bound:
      add(one.reference, _Use(one.where, one.annotation))
  return uses


def _readable(bindings: Sequence[str]) -> list[str]:
  """Returns bindings as gin reads them: a text gets its quotes.

  A value that is neither a literal nor a reference is a text, such as
  `runs/ict`. So is a number, where a text is wanted and no number.

  Raises:
    ConfigurationError: A value is empty, names a macro that does not exist, or
      cannot be read where the type of the setting is not known.
  """
  macros = _macros()
  uses = _uses(macros)
  readable = []
  for binding in bindings:
    name, _, value = (part.strip() for part in binding.partition("="))
    wanted = uses.get(name) or _uses_of_parameter(name)
    if not value:
      raise ConfigurationError(
        f"--gin.{name}= has no value; write --gin.{name}=VALUE"
      )
    if value.startswith("%") and value[1:] not in macros:
      near = _references(wanted, macros)
      near = near or difflib.get_close_matches(value[1:], macros)
      raise ConfigurationError(
        f"--gin.{name}={value}: no gin file binds {value[1:]}; want "
        + " or ".join(f"%{one}" for one in near or sorted(macros))
      )
    if not value.startswith(_OF_GIN) and _is_text(value, wanted):
      if not wanted or not all(settings.is_known(u.annotation) for u in wanted):
        quoted = shlex.quote(f'"{value}"')
        raise ConfigurationError(
          f"--gin.{name}={value}: cannot be read, and no annotation says that "
          f"it is a text; if it is one, write --gin.{name}={quoted}"
        )
      value = repr(value)
    readable.append(f"{name} = {value}")
  return readable


def _uses_of_parameter(name: str) -> list[_Use]:
  """Returns how `module.function.parameter` is used, if that is known."""
  selector, _, parameter = name.rpartition("/")[2].rpartition(".")
  if not selector:
    return []
  # One class has several selectors, if gin files import it by several names.
  selectors = gin.config._REGISTRY.matching_selectors(selector)
  found = {names.configurable(one) for one in selectors}
  if len(found) != 1:
    return []
  (configurable,) = found
  types = settings.parameter_types(configurable)
  if parameter not in types:
    return []
  return [_Use(f"{configurable.__name__}.{parameter}", types[parameter])]


def _is_text(value: str, wanted: Sequence[_Use]) -> bool:
  """Returns whether a value without quotes is a text."""
  try:
    literal = ast.literal_eval(value)
  except (SyntaxError, ValueError):
    return True
  if literal is None or isinstance(literal, bool | str | bytes):
    return False
  if not isinstance(literal, int | float):
    return True
  types = [use.annotation for use in wanted]
  return not any(settings.accepts(one, literal) for one in types) and any(
    settings.accepts(one, value) for one in types
  )


def _references(uses: Sequence[_Use], macros: Mapping[str, Any]) -> list[str]:
  """Returns the macros that refer to objects of the wanted types."""
  return sorted(
    name
    for name, bound in macros.items()
    if isinstance(bound, gin.config.ConfigurableReference)
    and bound.selector != MACRO
    and bound.evaluate
    and any(
      settings.accepts_instances(
        use.annotation, getattr(bound.configurable, "wrapped", None)
      )
      for use in uses
    )
  )


def _resolved(bound: Any, macros: Mapping[str, Any]) -> tuple[Any, str | None]:
  """Returns a bound value without references, and the macro that holds it."""
  if isinstance(bound, gin.config.ConfigurableReference):
    if bound.selector != MACRO:
      return settings.UNKNOWN, None
    name = bound.scopes[-1]
    value, inner_name = _resolved(macros[name], macros)
    return value, inner_name or name
  if isinstance(bound, (list, tuple)):
    return [_resolved(item, macros)[0] for item in bound], None
  if isinstance(bound, dict):
    return {
      _resolved(key, macros)[0]: _resolved(item, macros)[0]
      for key, item in bound.items()
    }, None
  return bound, None


def _require_types() -> None:
  """Checks bound values against the annotations of their parameters."""
  macros = _macros()
  for name, uses in _uses(macros).items():
    if name not in macros:
      continue
    value, inner_name = _resolved(macros[name], macros)
    for use in uses:
      if inner_name is None and not settings.accepts(use.annotation, value):
        such = ", ".join(f"%{n}" for n in _references([use], macros))
        such = such and f" such as {such}"
        raise ConfigurationError(
          f"{name}={value!r}: {use.where} wants "
          f"{settings.describe(use.annotation)}{such}; pass --gin.{name}=VALUE"
        )
  for (_, selector), bindings in CONFIG.items():
    configurable = names.configurable(selector)
    types = settings.parameter_types(configurable)
    for parameter in bindings.keys() & types.keys():
      value, macro = _resolved(bindings[parameter], macros)
      if macro is None and not settings.accepts(types[parameter], value):
        raise ConfigurationError(
          f"{configurable.__name__}.{parameter}={value!r}: want "
          f"{settings.describe(types[parameter])}"
        )


@contextlib.contextmanager
def parsed(
  gin_files: Sequence[str],
  bindings: Sequence[str] = (),
  *,
  search_paths: Sequence[str] = (".",),
  without_data: bool = False,
  of_run: str | None = None,
) -> Iterator[None]:
  """Sets gin's configuration during a `with` block, and restores it then.

  Later files override earlier ones, and bindings (`NAME = VALUE`) all files.

  Args:
    gin_files: Local files, or files on an object store.
    bindings: `NAME = VALUE`; each must bind a name that the files know.
    search_paths: Folders in which files are looked for.
    without_data: Whether what the files leave to the command line is a name of
      no file, so that a recipe can be read where its data are not.
    of_run: gin text that a run brings with it. It comes before the files, of
      which those of gin/runs bind only what it leaves open. Its names that no
      file uses are left out.

  Raises:
    ConfigurationError: A file is missing, a binding names nothing, a value
      cannot be read or has the wrong type, or a required value is not given.
  """
  with own_configuration():
    for path in (*search_paths, _PROJECT_DIR):
      gin.add_config_file_search_path(path)
    try:
      _parse_files(gin_files, of_run)
      _require_known_macros(bindings)
      gin.parse_config(_readable(bindings))
      names.bind()
      if without_data:
        gin.parse_config(
          [f"{name} = {_NO_FILE!r}" for name in _missing_macros()]
        )
      _require_given_macros()
      _require_types()
      gin.finalize()
    except ConfigurationError:
      raise
    except GIN_ERRORS as e:
      raise ConfigurationError(f"the gin configuration is wrong: {e}") from e
    yield


def names_of(gin_files: Sequence[str], *, search_paths: Sequence[str]) -> str:
  """Returns the names that gin files leave to be set, for people.

  Raises:
    ConfigurationError: A file is missing, or cannot be read.
  """
  with _read(gin_files, search_paths):
    return names.table()


@contextlib.contextmanager
def _read(
  gin_files: Sequence[str], search_paths: Sequence[str]
) -> Iterator[None]:
  """Reads gin files, without any check, during a `with` block."""
  with own_configuration():
    for path in (*search_paths, _PROJECT_DIR):
      gin.add_config_file_search_path(path)
    try:
      _parse_files(gin_files, None)
    except GIN_ERRORS as e:
      raise ConfigurationError(f"the gin configuration is wrong: {e}") from e
    yield


def _parse_files(gin_files: Sequence[str], of_run: str | None) -> None:
  read_files_as(defaults=of_run is not None)
  gin.parse_config(of_run or "")
  brought = [name for name, selector in CONFIG if selector == MACRO]
  gin.parse_config_files_and_bindings(
    gin_files, [], finalize_config=False, print_includes_and_imports=False
  )
  names.bind()
  for name in set(brought) - _used_macros():
    del CONFIG[name, MACRO]


def configures(
  gin_files: Sequence[str],
  function: Callable[..., Any],
  *,
  search_paths: Sequence[str] = (".",),
) -> bool:
  """Returns whether gin files bind any argument of a function.

  Raises:
    ConfigurationError: A file is missing, or cannot be read.
  """
  with _read(gin_files, search_paths):
    return is_configured(function)


def configured(function: Callable[..., _Result]) -> Callable[..., _Result]:
  """Returns a function with the arguments that the configuration binds.

  Raises:
    ConfigurationError: No gin file binds any.
  """
  try:
    return gin.get_configurable(function)
  except ValueError as error:
    raise ConfigurationError(
      f"no gin file binds {function.__module__}.{function.__name__}; pass "
      "one with --gin_file, for example from gin/runs/"
    ) from error


def bound_lines() -> list[str]:
  """Returns what is bound, by files and bindings, in lines of gin.

  They are sorted, so that equal bindings give equal lines. References stand as
  they are.
  """
  lines = gin.config_str(_MAX_LINE_LENGTH).splitlines()
  others = ("#", "import ", "from ")
  return [line for line in lines if line and not line.startswith(others)]


def is_configured(function: Callable[..., Any]) -> bool:
  """Returns whether a gin file binds any argument of a function."""
  bound = {selector for _, selector in CONFIG} - {MACRO}
  return function in [gin.config._REGISTRY[name].wrapped for name in bound]


def bound_value(name: str) -> Any:
  """Returns the value of a macro; None where no file uses it."""
  macros = _macros()
  if name not in macros:
    return None
  return _resolved(macros[name], macros)[0]


def text() -> str:
  """Returns the configuration as gin text, all names and bindings of it."""
  return gin.config_str()


def message_of(error: Exception) -> str:
  """Returns an error's message without gin's description of the call."""
  return str(error).partition(_GIN_ADDITION)[0]
