"""Command lines and gin: what every entry point shares.

A gin file opens with `from __gin__ import dynamic_registration` and imports
the modules whose arguments it binds, as in t5x, so nothing in the library is
decorated and nothing in it knows gin.
"""

import contextlib
import difflib
import importlib.util  # noqa: F401  gin reads it without importing it.
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gin
from absl import app, flags

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
# The clone's root, so that `gin/runs/…` is found from any working directory.
_PROJECT_DIR = str(Path(__file__).resolve().parent.parent)


class ConfigurationError(ValueError):
  """A gin file or binding that cannot mean what its author wanted."""


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


def _macros_in_use() -> set[str]:
  """The names of macros that are bound, or referred to, so far."""
  config = gin.config._CONFIG  # gin has no public way to list its macros.
  bound = {scope for scope, selector in config if selector == "gin.macro"}
  macro = gin.config.get_configurable("gin.macro")
  referred = {
    reference.scopes[-1]
    for reference in gin.config.iterate_references(config, to=macro)
  }
  return bound | referred


def _require_known_macros(bindings: Sequence[str]) -> None:
  known = _macros_in_use()
  for binding in bindings:
    name = binding.partition("=")[0].strip()
    if "." in name or name in known:
      continue
    near = difflib.get_close_matches(name, known) or sorted(known)
    raise ConfigurationError(
      f"--gin.{name} binds a name that no gin file uses; did you mean "
      f"{', '.join(near) or 'to pass a --gin_file'}?"
    )


@contextlib.contextmanager
def parsed(
  gin_files: Sequence[str],
  bindings: Sequence[str] = (),
  *,
  search_paths: Sequence[str] = (".",),
) -> Iterator[None]:
  """Holds a gin configuration for the time of a `with` block.

  Args:
    gin_files: gin files, the later override the earlier.
    bindings: `NAME = VALUE` statements that override all files.
    search_paths: folders in which files and their includes are looked for.

  Raises:
    ConfigurationError: a file is missing, a binding names nothing, or a
      value cannot be read.
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
      gin.finalize()
    except ConfigurationError:
      raise
    except (OSError, SyntaxError, ValueError, ImportError, AttributeError) as e:
      raise ConfigurationError(f"the gin configuration is wrong: {e}") from e
    yield
  finally:
    gin.clear_config()


def configured(function: Callable[..., Any]) -> Callable[..., Any]:
  """The function with the arguments that the held configuration binds."""
  try:
    return gin.get_configurable(function)
  except ValueError as error:
    raise ConfigurationError(
      f"no gin file binds {function.__module__}.{function.__name__}; pass "
      "one with --gin_file, for example from gin/runs/"
    ) from error


def call(function: Callable[..., Any], **overrides: Any) -> Any:
  """Calls `function` as the command line's gin flags configure it."""
  with parsed(
    _GIN_FILES.value,
    _GIN_BINDINGS.value,
    search_paths=_GIN_SEARCH_PATHS.value,
  ):
    return configured(function)(**overrides)


def run(main: Callable[[Sequence[str]], Any]) -> None:
  """Runs an entry point's `main(argv)`; errors of the user's end in a line.

  Errors that explain themselves (`ValueError` and `OSError`, which all of
  this project's error types extend) print as one line and exit with 2;
  anything else keeps its traceback, because it is a bug.
  """

  def guarded(argv: Sequence[str]) -> int:
    try:
      return main(argv) or 0
    except (ValueError, OSError) as error:
      if flags.FLAGS.debug_errors:
        raise
      print(f"{Path(argv[0]).stem}: {error}", file=sys.stderr)
      return 2

  try:
    arguments = expand_gin_flags(sys.argv)
  except ConfigurationError as error:
    sys.exit(str(error))
  app.run(guarded, argv=arguments)


flags.DEFINE_bool(
  "debug_errors", False, "Show the whole traceback of an error in the input."
)
