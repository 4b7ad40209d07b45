"""Flags, processes and exit codes that the commands share.

A command imports at its top only what its flags need. Its `main` imports what
it runs, and the seconds that TensorFlow takes with it, once the flags are
parsed and `require_run` has found the run.

Commands that own devices may run as several processes. On TPU slices, and
wherever else jax detects a cluster, every host starts the command as it is.
Elsewhere flags say where the processes meet:

    python -m realm_jax.train … --coordinator_address=HOST:PORT \\
      --num_processes=2 --process_id=0
"""

import functools
import inspect
import sys
import traceback
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from absl import app, flags

from realm_jax import settings, supervisor
from realm_jax.configuration import compilation_cache
from realm_jax.configuration.bindings import (
  Bindings,
  ConfigurationError,
  meaning,
)
from realm_jax.configuration.runs import (
  Recipe,
  kept_by_run,
  parsed_for_run,
  recipe_for_run,
)
from realm_jax.console import hide_library_messages
from realm_jax.errors import ExitCode, RealmError
from realm_jax.storage import access

_Result = TypeVar("_Result")
_Main = Callable[[Sequence[str]], int | None]

_GIN_FILES = flags.DEFINE_multi_string(
  "gin_file", [], "A gin file; repeatable, later files override earlier ones."
)
_GIN_BINDINGS = flags.DEFINE_multi_string(
  "gin_bindings", [], "A binding; `--gin.NAME=VALUE` is the short form."
)
_MODULES = flags.DEFINE_list(
  "modules",
  [],
  "Modules to import, such as my.stages: those of your own that a run names.",
)
_DEBUG_ERRORS = flags.DEFINE_bool(
  "debug_errors", False, "Show the whole traceback of an error in the input."
)
_COMPILATION_CACHE = flags.DEFINE_bool(
  "compilation_cache",
  True,
  "Keep compiled programs in ~/.cache/realm_jax, for the next start.",
)
# What functions below define belongs to the command that calls them, whose
# --help shows it.
flags.disclaim_key_flags()

_GIN_PREFIX = "--gin."


def define_run_flags() -> None:
  """Defines `--model_dir`, `--corpus_dir` and `--gin_help` for a command.

  In a process that imports several commands they are defined once.
  """
  if "gin_help" in flags.FLAGS:
    return
  flags.DEFINE_string(
    "model_dir",
    None,
    "MODEL_DIR of a run, which configures what the gin files and bindings of "
    "the command leave open.",
  )
  flags.DEFINE_string(
    "corpus_dir",
    None,
    "CORPUS_DIR; by default the one that the run has recorded.",
  )
  flags.DEFINE_bool(
    "gin_help",
    False,
    "Show the names that --gin.NAME=VALUE may set, with values and meanings.",
  )


def define_flags_of(function: Callable[..., Any], *parameters: str) -> None:
  """Defines a flag for each named parameter of a function or dataclass.

  Its type is that of the parameter, and its help what the docstring says.
  """
  signature = inspect.signature(function).parameters
  for name in parameters:
    text, default = f"{meaning(function, name)}.", signature[name].default
    parts = [*settings.parts(settings.parameter_types(function)[name])]
    if default == ():
      # Its items may have commas.
      flags.DEFINE_multi_string(name, [], text)
    elif Sequence in map(typing.get_origin, parts):
      flags.DEFINE_list(name, None, text)
    elif bool in parts:
      flags.DEFINE_bool(name, None, text)
    elif float in parts:
      flags.DEFINE_float(name, None, text)
    elif int in parts:
      flags.DEFINE_integer(name, None, text)
    else:
      is_required = default is inspect.Parameter.empty
      flags.DEFINE_string(name, None, text, required=is_required)


def given_flags(*parameters: str) -> dict[str, Any]:
  """Returns the values of those of these flags that the command line gives."""
  found = {name: flags.FLAGS[name] for name in parameters}
  return {name: flag.value for name, flag in found.items() if flag.present}


def _run_flag(name: str) -> Any:
  # Another command may have a flag of that name.
  return flags.FLAGS[name].value if "gin_help" in flags.FLAGS else None


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


def require_run(recipe: Recipe | None = None, *, waits: bool = False) -> None:
  """Checks that the command line names a run, or else all of the configuration.

  The arguments are as in `parsed_for_run`.

  Raises:
    ConfigurationError: There are neither gin files nor a run that keeps what is
      needed, or no recipe is for its stage, or the directory is not there.
  """
  model_dir, gin_files = _run_flag("model_dir"), _GIN_FILES.value
  shows_recipe = _run_flag("gin_help") and isinstance(recipe, str)
  if model_dir is not None and (recipe is None or not waits):
    kept = kept_by_run(model_dir, recipe, gin_files=gin_files)
    if not gin_files:
      recipe_for_run(kept, recipe)
  elif not (model_dir or gin_files or shows_recipe):
    raise ConfigurationError(
      "no run is named; give its directory as --model_dir=MODEL_DIR, or all of "
      "the configuration as --gin_file"
    )


def call(
  function: Callable[..., _Result],
  *,
  recipe: Recipe | None = None,
  waits: bool = False,
  **given: Any,
) -> _Result:
  """Calls a function with what is `given`, configured by the command line."""
  found = parsed_from_flags(
    function, recipe=recipe, waits=waits, given=[*given]
  )
  return found.build(function, **given)


def parsed_from_flags(
  function: Callable[..., Any],
  *,
  recipe: Recipe | None = None,
  waits: bool = False,
  given: Sequence[str] = (),
) -> Bindings:
  """Calls `parsed_for_run` with the command line's flags.

  With --gin_help it shows the names that may be set instead, and ends.
  """
  shows_names = bool(_run_flag("gin_help"))
  found = parsed_for_run(
    function,
    _run_flag("model_dir"),
    recipe=recipe,
    corpus_dir=_run_flag("corpus_dir"),
    gin_files=_GIN_FILES.value,
    bindings=_GIN_BINDINGS.value,
    modules=_MODULES.value,
    given=given,
    waits=waits and not shows_names,
    checks=not shows_names,
  )
  if shows_names:
    print(found.table())
    sys.exit(0)
  return found


def run(
  main: _Main,
  *,
  takes_texts: bool = False,
  on_devices: bool = False,
  is_supervised: bool = False,
) -> None:
  """Runs a command's `main(argv)` and ends with its exit code.

  Args:
    main: What the command does.
    takes_texts: Whether arguments may be no flags.
    on_devices: Whether several processes may run it, on all their devices. It
      has the flags of a run then.
    is_supervised: Whether it has `--max_restarts`, which its supervisor has
      read already.
  """
  if on_devices:
    define_run_flags()
    _define_flags_of_processes()
  if is_supervised:
    flags.DEFINE_integer(
      "max_restarts",
      supervisor.MAX_RESTARTS,
      "Restarts after failures, counted anew after each checkpoint or index; 0 "
      "does the work in the process that was started.",
      lower_bound=0,
    )
  app.run(
    functools.partial(exit_code, main, on_devices=on_devices),
    flags_parser=functools.partial(_parse_flags, takes_texts=takes_texts),
  )


def _define_flags_of_processes() -> None:
  """Defines those that `processes.initialize` takes."""
  flags.DEFINE_string("coordinator_address", None, "HOST:PORT of process 0.")
  flags.DEFINE_integer(
    "num_processes",
    None,
    "Number of processes that run this command together.",
  )
  flags.DEFINE_integer("process_id", None, "Number of this process, from 0.")
  flags.DEFINE_integer(
    "heartbeat_timeout_seconds",
    100,
    "Seconds without a sign of life after which a process is taken for dead.",
    lower_bound=1,
  )
  flags.DEFINE_integer(
    "initialization_timeout_seconds",
    300,
    "Seconds to wait until all processes have started.",
    lower_bound=1,
  )


def exit_code(
  main: _Main, argv: Sequence[str], *, on_devices: bool = False
) -> int:
  """Returns the `ExitCode` of `main(argv)`; prints a user's error as a line.

  Any other error is a bug, and keeps its traceback. Several processes
  `on_devices` end together, each with the code of the first that fails.
  """
  hide_library_messages()
  if _COMPILATION_CACHE.value:
    compilation_cache.enable()
  processes = None
  if on_devices:
    # After the flags are parsed: it imports jax.
    from realm_jax.partitioning import processes
  try:
    if processes is not None:
      names = inspect.signature(processes.initialize).parameters
      given: dict[str, Any] = {name: flags.FLAGS[name].value for name in names}
      processes.initialize(**given)
    code = main(argv) or 0
  except BaseException as error:
    explained = access.explained(error) or error
    is_bug = _DEBUG_ERRORS.value or not _is_of_user(explained)
    if is_bug and (processes is None or processes.is_alone()):
      raise
    if is_bug:
      traceback.print_exc()
    else:
      _print_error(argv[0], str(explained))
    code = 1 if is_bug else _code_of(error)
  if processes is not None:
    processes.leave(code)
  return code


def _is_of_user(error: BaseException) -> bool:
  """Returns whether a user can act on what an error says."""
  if isinstance(error, OSError):
    # fsspec's clients give the path as the only argument.
    return error.filename is not None or isinstance(error, FileNotFoundError)
  return isinstance(error, (RealmError, app.UsageError))


def _code_of(error: BaseException) -> int:
  """Returns the exit code of an error, or of what has caused it."""
  cause: BaseException | None = error
  while cause is not None:
    explained = access.explained(cause) or cause
    if (code := getattr(explained, "exit_code", None)) is not None:
      return code
    cause = cause.__cause__
  return ExitCode.USER_ERROR


def _parse_flags(argv: Sequence[str], *, takes_texts: bool) -> list[str]:
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
    _print_error(argv[0], " ".join(str(error).split()))
    sys.exit(ExitCode.USER_ERROR)
  except SystemExit:
    # absl ends with 1 once it has shown the help that was asked for.
    sys.exit(0)


def _print_error(program: str, message: str) -> None:
  path = Path(program)
  # A command is a module or a package.
  command = path.parent if path.stem == "__main__" else path
  print(f"{command.stem}: {message}", file=sys.stderr)
