"""Command lines and gin: what every entry point shares.

A gin file opens with `from __gin__ import dynamic_registration` and imports
the modules whose arguments it binds, as in t5x, so nothing in the library is
decorated and nothing in it knows gin.
"""

import contextlib
import difflib
import functools
import importlib.util  # noqa: F401  gin reads it without importing it.
import os
import sys
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

# TensorFlow only reads text in this project. Without this it reports at its
# import every accelerator library that it does not find. jax sets another
# value when it is imported, so this comes before all other imports.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from absl import app, flags

import gin
from realm_jax.console import annotations
from realm_jax.console.library_messages import hide_library_messages
from realm_jax.files.object_store import store_access

_Result = TypeVar("_Result")

_GIN_FILES = flags.DEFINE_multi_string(
  "gin_file", [], "A gin file; repeatable, later files override earlier ones."
)
_GIN_SEARCH_PATHS = flags.DEFINE_list(
  "gin_search_paths", ["."], "Where gin files are looked for."
)
_GIN_BINDINGS = flags.DEFINE_multi_string(
  "gin_bindings", [], "A binding; `--gin.NAME=VALUE` is the short form."
)

_GIN_PREFIX = "--gin."
_GIN_ADDITION = "\n  In call to configurable"
_MACRO = "gin.macro"
_REQUIRED = "gin.REQUIRED/gin.constant"  # What `%gin.REQUIRED` refers to.
_NOT_GIVEN = object()
_NO_FILE = "(not given)"
# Longer than any binding, so that gin divides none into lines.
_MAX_LINE_LENGTH = 10_000
_CONFIG = gin.config._CONFIG  # gin has no public way to list its bindings.
# What gin raises for text that it cannot read, and for names that are unknown.
_GIN_ERRORS = (
  OSError,
  SyntaxError,
  tokenize.TokenError,
  ValueError,
  ImportError,
  AttributeError,
)
# The clone's root, so that `gin/runs/…` is found from any working directory.
_PROJECT_DIR = str(Path(__file__).resolve().parent.parent)


class ConfigurationError(ValueError):
  """A gin file or binding that is wrong."""


def expand_gin_flags(argv: Sequence[str]) -> list[str]:
  """Rewrites `--gin.NAME=VALUE` as `--gin_bindings=NAME = VALUE`."""
  expanded = []
  for argument in argv:
    if argument.startswith(_GIN_PREFIX):
      name, separator, value = argument[len(_GIN_PREFIX) :].partition("=")
      if not separator:
        raise ConfigurationError(
          f"{argument} has no value; write --gin.{name}=VALUE"
        )
      argument = f"--gin_bindings={name} = {value}"
    expanded.append(argument)
  return expanded


def _macros() -> dict[str, Any]:
  """Returns the value of each macro that is set or used, or `_NOT_GIVEN`."""
  macro = gin.config.get_configurable(_MACRO)
  used = gin.config.iterate_references(_CONFIG, to=macro)
  values = {reference.scopes[-1]: _NOT_GIVEN for reference in used}
  for (name, selector), bound in _CONFIG.items():
    if selector == _MACRO:
      value = bound.get("value")
      is_required = getattr(value, "scoped_selector", None) == _REQUIRED
      values[name] = _NOT_GIVEN if is_required else value
  return values


def _require_known_macros(bindings: Sequence[str]) -> None:
  known = _macros()
  for binding in bindings:
    name = binding.partition("=")[0].strip()
    if "." in name or name in known:
      continue
    near = difflib.get_close_matches(name, known) or sorted(known)
    raise ConfigurationError(
      f"--gin.{name} binds a name that no gin file uses; did you mean "
      f"{', '.join(near) or 'to pass a --gin_file'}?"
    )


def _missing_macros() -> list[str]:
  return sorted(n for n, value in _macros().items() if value is _NOT_GIVEN)


def _require_given_macros() -> None:
  """Reports all values that the gin files leave to the command line."""
  if missing := _missing_macros():
    raise ConfigurationError(
      f"no value for {', '.join(missing)}; pass "
      + " ".join(f"--gin.{name}=VALUE" for name in missing)
      + " or a --gin_file that binds it"
    )


def _resolved(bound: Any, macros: Mapping[str, Any]) -> tuple[Any, str | None]:
  """Returns a bound value without references, and the macro that holds it."""
  if isinstance(bound, gin.config.ConfigurableReference):
    if bound.selector != _MACRO:
      return annotations.UNKNOWN, None
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
  for (_, selector), bindings in _CONFIG.items():
    # gin has no public way to get at the function that it has wrapped.
    configurable = gin.config._REGISTRY[selector].wrapped
    types = annotations.parameter_types(configurable)
    for parameter in bindings.keys() & types.keys():
      value, macro = _resolved(bindings[parameter], macros)
      if not annotations.accepts(types[parameter], value):
        wanted = annotations.describe(types[parameter])
        name = f"{configurable.__name__}.{parameter}"
        raise ConfigurationError(
          f"{macro}={value!r}: {name} wants {wanted}; pass --gin.{macro}=VALUE"
          if macro
          else f"{name}={value!r}: want {wanted}"
        )


@contextlib.contextmanager
def parsed(
  gin_files: Sequence[str],
  bindings: Sequence[str] = (),
  *,
  search_paths: Sequence[str] = (".",),
  without_data: bool = False,
) -> Iterator[None]:
  """Sets gin's configuration during a `with` block.

  Later files override earlier ones, and bindings (`NAME = VALUE`) all files.
  With `without_data`, what the files leave to the command line is a name of no
  file, so that a recipe can be read where its data are not.

  Raises:
    ConfigurationError: A file is missing, a binding names nothing, a value
      cannot be read or has the wrong type, or a required value is not given.
  """
  for path in (*search_paths, _PROJECT_DIR):
    gin.add_config_file_search_path(path)
  try:
    try:
      gin.parse_config_files_and_bindings(
        gin_files, [], finalize_config=False, print_includes_and_imports=False
      )
      _require_known_macros(bindings)
      gin.parse_config(bindings)
      if without_data:
        gin.parse_config(
          [f"{name} = {_NO_FILE!r}" for name in _missing_macros()]
        )
      _require_given_macros()
      _require_types()
      gin.finalize()
    except ConfigurationError:
      raise
    except _GIN_ERRORS as e:
      raise ConfigurationError(f"the gin configuration is wrong: {e}") from e
    yield
  finally:
    gin.clear_config()


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
  bound = {selector for _, selector in _CONFIG} - {_MACRO}
  return function in [gin.config._REGISTRY[name].wrapped for name in bound]


def given() -> tuple[list[str], list[str]]:
  """Returns the gin files and bindings of the command line."""
  return list(_GIN_FILES.value), list(_GIN_BINDINGS.value)


def call(function: Callable[..., _Result], **overrides: Any) -> _Result:
  """Calls `function` as the command line's gin flags configure it."""
  with parsed_from_flags():
    return configured(function)(**overrides)


def parsed_from_flags(
  *, without_data: bool = False
) -> contextlib.AbstractContextManager[None]:
  """Sets gin's configuration, by the command line, during a `with` block.

  Raises what `parsed` does.
  """
  return parsed(
    *given(), search_paths=_GIN_SEARCH_PATHS.value, without_data=without_data
  )


def message_of(error: Exception) -> str:
  """Returns an error's message without gin's description of the call."""
  return str(error).partition(_GIN_ADDITION)[0]


def exit_code(
  main: Callable[[Sequence[str]], int | None], argv: Sequence[str]
) -> int:
  """Returns the exit code of `main(argv)`; prints a user's error as a line.

  Errors that explain themselves (`ValueError` and `OSError`, from which all
  error types of this project derive) are printed and exit with 2, and so are
  those of an object store. All others are bugs and keep their traceback.
  """
  hide_library_messages()
  try:
    return main(argv) or 0
  except Exception as error:
    message = store_access.explanation(error)
    if message is None and isinstance(error, (ValueError, OSError)):
      message = message_of(error)
    if message is None or flags.FLAGS.debug_errors:
      raise
    path = Path(argv[0])
    # An entry point is a module or a package.
    command = path.parent if path.stem == "__main__" else path
    print(f"{command.stem}: {message}", file=sys.stderr)
    return 2


def run(main: Callable[[Sequence[str]], int | None]) -> None:
  """Runs an entry point's `main(argv)` and ends with its exit code."""
  try:
    arguments = expand_gin_flags(sys.argv)
  except ConfigurationError as error:
    sys.exit(str(error))
  app.run(functools.partial(exit_code, main), argv=arguments)


flags.DEFINE_bool(
  "debug_errors", False, "Show the whole traceback of an error in the input."
)
