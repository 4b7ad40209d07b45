"""Command lines and gin: what every entry point shares.

A gin file opens with `from __gin__ import dynamic_registration` and imports
the modules whose arguments it binds, as in t5x, so nothing in the library is
decorated and nothing in it knows gin.
"""

import contextlib
import difflib
import importlib.util  # noqa: F401  gin reads it without importing it.
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags
from absl import logging as absl_logging

import gin

# TensorFlow reads text here and nothing else; without this it reports, at its
# import, each accelerator library that it does not find.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

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
_PACKAGE_DIR = str(Path(__file__).resolve().parent)
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


def _macros() -> tuple[set[str], set[str]]:
  """The names of the macros that have a value, and of all there are."""
  config = gin.config._CONFIG  # gin has no public way to list its macros.
  bound = {
    name: values.get("value")
    for (name, selector), values in config.items()
    if selector == "gin.macro"
  }
  given = {name for name, value in bound.items() if not _is_required(value)}
  macro = gin.config.get_configurable("gin.macro")
  referred = {
    reference.scopes[-1]
    for reference in gin.config.iterate_references(config, to=macro)
  }
  return given, referred | bound.keys()


def _is_required(value: Any) -> bool:
  """Whether it is `%gin.REQUIRED`: to be given on the command line."""
  selector = getattr(value, "scoped_selector", None)
  return selector == "gin.REQUIRED/gin.constant"


def _require_known_macros(bindings: Sequence[str]) -> None:
  _, known = _macros()
  for binding in bindings:
    name = binding.partition("=")[0].strip()
    if "." in name or name in known:
      continue
    near = difflib.get_close_matches(name, known) or sorted(known)
    raise ConfigurationError(
      f"--gin.{name} binds a name that no gin file uses; did you mean "
      f"{', '.join(near) or 'to pass a --gin_file'}?"
    )


def _require_given_macros() -> None:
  """Names at once all that the files leave to the command line."""
  given, known = _macros()
  missing = sorted(known - given)
  if missing:
    raise ConfigurationError(
      f"no value for {', '.join(missing)}; pass "
      + " ".join(f"--gin.{name}=VALUE" for name in missing)
      + " or a --gin_file that binds it"
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
    ConfigurationError: a file is missing, a binding names nothing, a value
      cannot be read, or what must be given is not.
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
      _require_given_macros()
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


def given() -> tuple[list[str], list[str]]:
  """The gin files and bindings of the command line."""
  return list(_GIN_FILES.value), list(_GIN_BINDINGS.value)


def call(function: Callable[..., Any], **overrides: Any) -> Any:
  """Calls `function` as the command line's gin flags configure it."""
  with parsed(
    _GIN_FILES.value,
    _GIN_BINDINGS.value,
    search_paths=_GIN_SEARCH_PATHS.value,
  ):
    return configured(function)(**overrides)


def show_our_lines() -> None:
  """Logs this project's lines from INFO on, and other libraries' warnings.

  Orbax writes some twenty lines for a checkpoint, and warns at each opening
  of one for reading that it will not write; of it only errors are shown.
  """

  def is_shown(record: logging.LogRecord) -> bool:
    if record.pathname.startswith(_PACKAGE_DIR):
      return True
    least = logging.ERROR if "orbax" in record.pathname else logging.WARNING
    return record.levelno >= least

  absl_logging.set_verbosity(absl_logging.INFO)
  absl_logging.get_absl_handler().addFilter(is_shown)


def message_of(error: Exception) -> str:
  """What an error says, without where gin says that the call stood."""
  return str(error).partition(_GIN_ADDITION)[0]


def _command(path: str) -> str:
  """The name of an entry point: a module's, or a package's."""
  is_package = Path(path).stem == "__main__"
  return Path(path).parent.name if is_package else Path(path).stem


def run(main: Callable[[Sequence[str]], Any]) -> None:
  """Runs an entry point's `main(argv)`; errors of the user's end in a line.

  Errors that explain themselves (`ValueError` and `OSError`, which all of
  this project's error types extend) print as one line and exit with 2;
  anything else keeps its traceback, because it is a bug.
  """

  def guarded(argv: Sequence[str]) -> int:
    show_our_lines()
    try:
      return main(argv) or 0
    except (ValueError, OSError) as error:
      if flags.FLAGS.debug_errors:
        raise
      print(f"{_command(argv[0])}: {message_of(error)}", file=sys.stderr)
      return 2

  try:
    arguments = expand_gin_flags(sys.argv)
  except ConfigurationError as error:
    sys.exit(str(error))
  app.run(guarded, argv=arguments)


flags.DEFINE_bool(
  "debug_errors", False, "Show the whole traceback of an error in the input."
)
