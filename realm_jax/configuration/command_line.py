"""Flags, processes and exit codes of the commands.

At the top, a command imports only what its flags need. Its `main` imports the
rest, which takes seconds for jax and seqio, once `configured` has found the
run.

Commands that use devices may run as several processes. On TPU slices, and on
other clusters that jax detects, start the same command on every host. Elsewhere
flags give the address of the coordinator:

    python -m realm_jax.train … --coordinator_address=HOST:PORT \\
      --num_processes=2 --process_id=0
"""

import atexit
import contextlib
import inspect
import os
import re
import select
import signal
import sys
import traceback
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from absl import app, flags

from realm_jax import settings, supervisor
from realm_jax.configuration import compilation_cache
from realm_jax.configuration.bindings import (
  ConfigurationError,
  Target,
  meaning,
)
from realm_jax.configuration.parsing import Recipe, parsed
from realm_jax.console import hide_library_messages, prepare_streams
from realm_jax.errors import RealmError
from realm_jax.storage import access
from realm_jax.storage.json_files import require_unicode
from realm_jax.storage.local_disk import NO_SPACE

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
# Optional libraries, and the extras that install them.
_EXTRAS = {
  **dict.fromkeys(("seqio", "tensorboard", "tensorflow"), "train"),
  **dict.fromkeys(("tensorflow_datasets", "tensorflow_text"), "train"),
  **dict.fromkeys(("starlette", "uvicorn"), "serve"),
  **dict.fromkeys(("xmanager", "yaml"), "launch"),
}
# Flags that functions below define belong to the calling command, whose --help
# lists them.
flags.disclaim_key_flags()

# Flags of the parameters of `processes.initialize`.
_OF_PROCESSES = (
  *("coordinator_address", "num_processes", "process_id"),
  *("heartbeat_timeout_seconds", "initialization_timeout_seconds"),
)
# Kinds of flags for types of parameters; other types have string flags.
_OF_TYPES = {
  bool: flags.DEFINE_bool,
  float: flags.DEFINE_float,
  int: flags.DEFINE_integer,
}


def define_run_flags() -> None:
  """Defines `--model_dir`, `--corpus_dir` and `--gin_help` for a command.

  If a process imports several commands, they are defined only once.
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
    None,
    "Show the names that --gin.NAME=VALUE may set, with values and meanings.",
  )


def define_flags_of(function: Callable[..., Any], *parameters: str) -> None:
  """Defines flags for parameters of a function or dataclass.

  A flag has the type of its parameter, and its help is from the docstring.
  """
  signature = inspect.signature(function).parameters
  for name in parameters:
    text, default = f"{meaning(function, name)}.", signature[name].default
    annotation = settings.parameter_types(function)[name]
    kinds = [*settings.alternatives(annotation)]
    if default == ():
      # Items may have commas.
      flags.DEFINE_multi_string(name, [], text)
    elif Sequence in map(typing.get_origin, kinds):
      flags.DEFINE_list(name, None, text)
    else:
      defines = [one for kind, one in _OF_TYPES.items() if kind in kinds]
      define = defines[0] if defines else flags.DEFINE_string
      is_required = default is inspect.Parameter.empty
      define(name, None, text, required=is_required)


def given_flags(*parameters: str) -> dict[str, Any]:
  """Returns the values of these flags, if they are on the command line."""
  values = {name: flags.FLAGS[name] for name in parameters}
  return {name: flag.value for name, flag in values.items() if flag.present}


def expand_gin_flags(argv: Sequence[str]) -> list[str]:
  """Rewrites `--gin.NAME=VALUE` as `--gin_bindings=NAME = VALUE`."""
  written = r"--gin_bindings=\1 = "
  return [re.sub(r"^--gin\.([^=]*)=?", written, one) for one in argv]


def configured(
  function: Target | str,
  *,
  recipe: Recipe | None = None,
  waits: bool = False,
  **arguments: Any,
) -> Callable[[], Any]:
  """Configures a function or class from the command line, ready to be called.

  With --gin_help it prints the names that may be set, and exits.

  Args:
    function, recipe, waits: As in `parsed`.
    **arguments: Arguments that the command line does not configure.

  Raises:
    ConfigurationError: There are neither a run nor gin files; or as in
      `parsed`.
  """
  model_dir = corpus_dir = shows_names = None
  # Another command may have flags of these names.
  if is_of_run := "gin_help" in flags.FLAGS:
    model_dir, corpus_dir = flags.FLAGS.model_dir, flags.FLAGS.corpus_dir
    shows_names = flags.FLAGS.gin_help
  is_named = model_dir or _GIN_FILES.value
  if is_of_run and not (is_named or (shows_names and recipe is not None)):
    raise ConfigurationError(
      "no run is named; give its directory as --model_dir=MODEL_DIR, or all of "
      "the configuration as --gin_file"
    )
  bindings = parsed(
    function,
    _GIN_FILES.value,
    _GIN_BINDINGS.value,
    model_dir=model_dir,
    corpus_dir=corpus_dir,
    recipe=recipe,
    modules=_MODULES.value,
    arguments=arguments,
    waits=waits and not shows_names,
    checks=not shows_names,
  )
  if shows_names:
    print(bindings.table())
    sys.exit(0)
  return bindings.configured(bindings.root)


def run(
  main: Callable[[Sequence[str]], int | None],
  *,
  takes_texts: bool = False,
  on_devices: bool = False,
  is_supervised: bool = False,
) -> NoReturn:
  """Runs a command's `main(argv)` and ends with its exit code.

  A user's error is printed in one line. Any other error is a bug, and keeps its
  traceback. Several processes `on_devices` end together, each with the code of
  the first that fails.

  Args:
    main: Function that runs the command.
    takes_texts: Whether there may be arguments that are not flags.
    on_devices: Whether several processes may run the command, on all their
      devices. It then has the flags of a run.
    is_supervised: Whether the command has `--max_restarts`, which its
      supervisor has already read.
  """
  if on_devices:
    # Imports jax, which other commands do not need.
    from realm_jax.partitioning import processes

    define_run_flags()
    define_flags_of(processes.initialize, *_OF_PROCESSES)
  if is_supervised:
    flags.DEFINE_integer(
      "max_restarts",
      supervisor.MAX_RESTARTS,
      "Restarts after failures, counted anew after each checkpoint or index; 0 "
      "does the work in the process that was started.",
      lower_bound=0,
    )

  def start(arguments: Sequence[str]) -> list[str]:
    texts = _parsed_flags(arguments, takes_texts)
    hide_library_messages()
    if _COMPILATION_CACHE.value:
      compilation_cache.enable()
    if on_devices:
      processes.initialize(**given_flags(*_OF_PROCESSES))
    return texts

  if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
  prepare_streams()
  code: Any = 0
  try:
    try:
      app.run(main, flags_parser=start)
    finally:
      sys.stdout.flush()
  except SystemExit as ended:
    # absl exits with the value that `main` returned.
    code = ended.code or 0
  except BaseException as error:
    code = exit_code(error)
  if on_devices and flags.FLAGS.is_parsed():
    from realm_jax.partitioning import processes

    processes.leave(code)
  if code == 128 + signal.SIGINT:
    # Python's other cleanup takes seconds, and has no effect.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)
  sys.exit(code)


def _parsed_flags(arguments: Sequence[str], takes_texts: bool) -> list[str]:
  """Parses flags; returns the other arguments."""
  for argument in arguments:
    require_unicode(argument, f"the argument {argument!r}")
  try:
    texts = flags.FLAGS(expand_gin_flags(arguments))
  except flags.Error as error:
    raise ConfigurationError(" ".join(str(error).split())) from error
  except SystemExit:
    # absl would exit with 1 after printing the help.
    sys.exit(0)
  if texts[1:] and not takes_texts:
    raise ConfigurationError(
      f"{texts[1]!r} is no flag; write --NAME=VALUE, and quote patterns of "
      "files so that the shell leaves them alone"
    )
  return texts


def exit_code(error: BaseException) -> int:
  """Prints an error, and returns the exit code of this program.

  An error that a user can act on is printed in one line. Any other is a bug,
  and keeps its traceback. Ctrl-C and a closed pipe print nothing.
  """
  if isinstance(error, KeyboardInterrupt):
    _say("interrupted")
    return 128 + signal.SIGINT
  if isinstance(error, BrokenPipeError) and _nobody_reads():
    return 128 + signal.SIGPIPE
  explained = (
    access.explained(error)
    or _without_device(error)
    or _without_output(error)
    or _without_extra(error)
    or error
  )
  is_of_user = isinstance(explained, RealmError)
  if isinstance(explained, OSError):
    # fsspec's clients raise it with only the path as argument.
    is_missing = isinstance(explained, FileNotFoundError)
    is_of_user = is_missing or explained.filename is not None
  if not is_of_user or (flags.FLAGS.is_parsed() and _DEBUG_ERRORS.value):
    traceback.print_exception(error)
  if not is_of_user:
    return 1
  path = Path(sys.argv[0])
  # A command is a module or a package.
  command = path.parent if path.stem == "__main__" else path
  _say(f"{command.stem}: {explained}")
  return access.exit_code_of(error)


def _say(text: str) -> None:
  """Prints a line about an error, if standard error is open."""
  with contextlib.suppress(OSError):
    print(text, file=sys.stderr, flush=True)


def _without_device(error: BaseException) -> RealmError | None:
  """Explains an error of jax about a missing device, with advice.

  These errors have no type of their own; one is an assertion without a message.
  """
  places = traceback.extract_tb(error.__traceback__)
  if not places or Path(places[-1].filename).name != "xla_bridge.py":
    return None
  platforms = os.environ.get("JAX_PLATFORMS")
  said = " ".join(str(error).split())
  return RealmError(
    f"jax finds no device to compute on with JAX_PLATFORMS={platforms}"
    f"{said and f' ({said})'}; set JAX_PLATFORMS=cpu, or install the driver "
    "and the jax for the device that you want to use"
  )


def _without_output(error: BaseException) -> RealmError | None:
  """Explains a failure to write to the standard output, with advice.

  Drops the buffered output.
  """
  if not (isinstance(error, OSError) and error.errno in NO_SPACE):
    return None
  try:
    # Disk errors of streams, unlike others, have no file name.
    if error.filename is None:
      os.write(sys.stdout.fileno(), b"\n")
    return None
  except OSError:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  return RealmError(
    f"the standard output cannot be written ({error.strerror}); free some "
    "space where it goes, or send it elsewhere"
  )


def _without_extra(error: BaseException) -> RealmError | None:
  """Explains a missing library of an extra, with advice."""
  # Errors of gin's imports keep only the text.
  match = re.search(r"No module named '(\w+)", str(error))
  if match is None or match[1] not in _EXTRAS:
    return None
  return RealmError(
    f"this needs the library {match[1]}, which is not installed; pip install "
    f"'realm_jax[{_EXTRAS[match[1]]}]'"
  )


def _nobody_reads() -> bool:
  """Returns whether the reader of the standard output, such as `head`, is gone.

  If so, drops the buffered output.
  """
  poll = select.poll()
  poll.register(sys.stdout, select.POLLOUT)
  if not any(state & select.POLLERR for _, state in poll.poll(0)):
    return False
  os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  return True
