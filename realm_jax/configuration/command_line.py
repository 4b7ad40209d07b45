"""Flags and exit codes that the entry points share.

A module that is imported and run as a command's defines them, so that nothing
of the library, nor `realm_jax.load`, imports this one.

An entry point imports at its top only what its flags need. Its `main` imports
what it runs, and the seconds that TensorFlow takes with it, once the flags are
parsed and `require_run` has found the run.
"""

import contextlib
import functools
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from absl import app, flags
from etils import epath

from realm_jax.configuration.errors import ConfigurationError
from realm_jax.configuration.for_run import (
  DefaultRecipe,
  ValuesOfRun,
  parsed_for_run,
  recipe_for,
  require_directory,
  with_directories,
)
from realm_jax.configuration.parsing import (
  configured,
  message_of,
  names_of,
  parsed,
)
from realm_jax.configuration.run_record import RunRecord
from realm_jax.console.library_messages import hide_library_messages
from realm_jax.exit_codes import ExitCode
from realm_jax.files import compilation_cache
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
_DEBUG_ERRORS = flags.DEFINE_bool(
  "debug_errors", False, "Show the whole traceback of an error in the input."
)
_COMPILATION_CACHE = flags.DEFINE_bool(
  "compilation_cache",
  True,
  "Keep compiled programs in ~/.cache/realm_jax, for the next start.",
)

_GIN_PREFIX = "--gin."
# Errors that explain themselves. All error types of this project derive from
# the first two; with the last, commands refuse arguments.
_EXPLAINED = (ValueError, OSError, app.UsageError)
# The flags of `define_run_flags`, by name, for the commands that call it.
_run_flags: dict[str, flags.FlagHolder[str | None]] = {}


def define_run_flags() -> None:
  """Defines `--model_dir`, `--corpus_dir` and `--gin_help` for a command.

  Commands of devices have them. Others call this before flags are parsed; in
  a process that imports several commands they are defined once.
  """
  if _run_flags:
    return
  for name, text in (
    (
      "model_dir",
      "MODEL_DIR of a run, whose config.gin configures what the gin files and "
      "bindings of the command leave open.",
    ),
    ("corpus_dir", "CORPUS_DIR; by default the one of the run's config.gin."),
  ):
    _run_flags[name] = flags.DEFINE_string(name, None, text)
  flags.DEFINE_bool(
    "gin_help",
    False,
    "Show the names that --gin.NAME=VALUE may set, with values and meanings.",
  )


def _run_flag(name: str) -> str | None:
  return _run_flags[name].value if name in _run_flags else None


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


def given() -> tuple[list[str], list[str]]:
  """Returns the gin files and bindings of the command line."""
  return list(_GIN_FILES.value), list(_GIN_BINDINGS.value)


def require_run(default_recipe: DefaultRecipe, *, waits: bool = False) -> None:
  """Checks that the command line names a run, or else all of the configuration.

  With --gin_help it shows the names that may be set instead, and ends.

  Args:
    default_recipe: Recipe for where there are no gin files; empty for a
      command that makes the run.
    waits: Whether the run may start later.

  Raises:
    ConfigurationError: There are neither gin files nor a run with a record, or
      no recipe is for the stage of the run, or the directory is not there.
  """
  model_dir = _run_flag("model_dir")
  if flags.FLAGS.gin_help:
    _show_names(default_recipe)
  if _GIN_FILES.value:
    if model_dir is not None and default_recipe and not waits:
      require_directory(epath.Path(model_dir))
    return
  if model_dir is None:
    raise ConfigurationError(
      "no run is named; give its directory as --model_dir=MODEL_DIR, or all of "
      "the configuration as --gin_file"
    )
  if not waits:
    recipe_for(RunRecord.find(model_dir), model_dir, default_recipe)


def _show_names(default_recipe: DefaultRecipe) -> NoReturn:
  """Shows the names that the command's gin files leave to be set, and ends."""
  model_dir, files = _run_flag("model_dir"), list(_GIN_FILES.value)
  if not files and isinstance(default_recipe, str):
    files = [default_recipe]
  elif not files and default_recipe and model_dir is not None:
    files = [recipe_for(RunRecord.find(model_dir), model_dir, default_recipe)]
  if not files:
    raise ConfigurationError(
      "--gin_help shows the names of gin files; give them as --gin_file"
    )
  print(names_of(files, search_paths=_GIN_SEARCH_PATHS.value))
  sys.exit(0)


def call(
  function: Callable[..., _Result],
  *,
  default_recipe: DefaultRecipe | None = None,
  values_of_run: ValuesOfRun = lambda record: {},
  waits: bool = False,
  **overrides: Any,
) -> _Result:
  """Calls `function` as the command line's gin flags configure it.

  With a default recipe, `--model_dir` alone configures it, by the record of the
  run and that recipe. The other arguments, and what it raises, are those of
  `parsed_for_run`; the overrides are arguments of the function.
  """
  model_dir, (gin_files, bindings) = _run_flag("model_dir"), given()
  if default_recipe is not None:
    require_run(default_recipe, waits=waits)
  if default_recipe is None or model_dir is None:
    configuration: contextlib.AbstractContextManager[Any] = parsed_from_flags()
  else:
    configuration = parsed_for_run(
      function,
      model_dir,
      default_recipe=default_recipe,
      corpus_dir=_run_flag("corpus_dir"),
      gin_files=gin_files,
      bindings=bindings,
      search_paths=_GIN_SEARCH_PATHS.value,
      values_of_run=values_of_run,
      waits=waits,
    )
  with configuration:
    return configured(function)(**overrides)


def parsed_from_flags(
  *, without_data: bool = False
) -> contextlib.AbstractContextManager[None]:
  """Sets gin's configuration, by the command line, during a `with` block.

  Without gin files it is the one that the run of `--model_dir` has recorded.
  Raises what `parsed` does.
  """
  gin_files, bindings = given()
  model_dir, corpus_dir = _run_flag("model_dir"), _run_flag("corpus_dir")
  if model_dir is not None and not gin_files:
    record = RunRecord.find(model_dir)
    gin_files = [str(record.path)] if record is not None else []
  return parsed(
    gin_files,
    with_directories(bindings, model_dir=model_dir, corpus_dir=corpus_dir),
    search_paths=_GIN_SEARCH_PATHS.value,
    without_data=without_data,
  )


def exit_code(
  main: Callable[[Sequence[str]], int | None], argv: Sequence[str]
) -> int:
  """Returns the exit code of `main(argv)`; prints a user's error as a line.

  `ExitCode` lists the codes. Errors that do not explain themselves are bugs
  and keep their traceback.
  """
  hide_library_messages()
  try:
    return main(argv) or 0
  except Exception as error:
    explained = store_access.explained(error) or error
    if _DEBUG_ERRORS.value or not isinstance(explained, _EXPLAINED):
      raise
    _print_error(argv[0], message_of(explained))
    return _code_of(error)


def _code_of(error: BaseException) -> int:
  """Returns the exit code of an error, or of what has caused it."""
  cause: BaseException | None = error
  while cause is not None:
    explained = store_access.explained(cause) or cause
    if (code := getattr(explained, "exit_code", None)) is not None:
      return code
    cause = cause.__cause__
  return ExitCode.USER_ERROR


def run(
  main: Callable[[Sequence[str]], int | None], *, takes_texts: bool = False
) -> None:
  """Runs an entry point's `main(argv)` and ends with its exit code.

  Arguments that are no flags are refused, unless it `takes_texts`.
  """

  def configured_main(argv: Sequence[str]) -> int:
    if _COMPILATION_CACHE.value:
      compilation_cache.enable()
    else:
      compilation_cache.disable()
    return exit_code(main, argv)

  app.run(
    configured_main,
    flags_parser=functools.partial(parse_flags, takes_texts=takes_texts),
  )


def parse_flags(argv: Sequence[str], *, takes_texts: bool = False) -> list[str]:
  """Parses flags; returns the others. What is wrong is a line, and exit 2."""
  try:
    texts = flags.FLAGS(expand_gin_flags(argv))
    if texts[1:] and not takes_texts:
      raise ConfigurationError(
        f"{texts[1]!r} is no flag; write --NAME=VALUE, and quote patterns of "
        "files so that the shell leaves them alone"
      )
    return texts
  except (flags.Error, ConfigurationError) as error:
    _print_error(argv[0], _without_none(str(error)))
    sys.exit(ExitCode.USER_ERROR)


def _without_none(error: str) -> str:
  """Returns absl's message; a required flag that is missing is described."""
  missing = re.findall(r"^flag --(\w+)=None: Flag --\w+ must", error, re.M)
  if not missing:
    return " ".join(error.split())
  # absl adds how a flag is repeated.
  helps = [flags.FLAGS[name].help.partition(";\n")[0] for name in missing]
  return "no value for " + ", ".join(
    f"--{name} ({text.rstrip('.')})"
    for name, text in zip(missing, helps, strict=True)
  )


def _print_error(program: str, message: str) -> None:
  path = Path(program)
  # An entry point is a module or a package.
  command = path.parent if path.stem == "__main__" else path
  print(f"{command.stem}: {message}", file=sys.stderr)
