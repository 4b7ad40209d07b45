"""The configuration of a command that is about a run.

Such a command reads, one after the other, so that the later ones override:

1. its recipe in gin/runs, if it has one;
2. what the run shares (`kept`), or all of it for a command that continues it;
3. the gin files and bindings that are given to it.
"""

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from absl import logging
from etils import epath

from realm_jax.configuration.bindings import (
  MODEL,
  Bindings,
  ConfigurationError,
)
from realm_jax.configuration.kept import FILE, Kept, run_directory
from realm_jax.configuration.parsing import Source, parsed, read
from realm_jax.storage.paths import is_remote, list_names

# A file of gin/runs, "" for none, or those of which the run's stage chooses
# one. A file that is given to the command takes the place of the latter if it
# binds all that the command's function requires by name.
Recipe = str | Sequence[str]

# What earlier versions kept, as gin files.
_OLDER_FILES = ("model.gin", "config.gin")
_POLL_SECONDS = 1.0
_REMINDER_SECONDS = 30.0


def parsed_for_run(
  function: Callable[..., Any],
  model_dir: epath.PathLike | None,
  *,
  recipe: Recipe | None = "",
  corpus_dir: epath.PathLike | None = None,
  gin_files: Sequence[str] = (),
  bindings: Sequence[str] = (),
  modules: Sequence[str] = (),
  given: Sequence[str] = (),
  waits: bool = False,
  checks: bool = True,
) -> Bindings:
  """Returns the configuration of a command of a run.

  Args:
    function: Function that the command calls.
    model_dir: MODEL_DIR of a run, or one of its checkpoints. It may have been
      moved since. None leaves it to the gin files.
    recipe: Recipe over which the others are read; None for a command that
      makes the run, or continues it by the whole configuration.
    corpus_dir: Corpus; None takes the one that the run has recorded.
    gin_files, bindings, given: As `parsed` takes them. With a model, gin files
      need no run that keeps one.
    modules: Modules to import, which the run may name.
    waits: Whether to wait for a trainer to start.
    checks: Whether to read the bindings, and to check the whole.

  Raises:
    ConfigurationError: The run keeps nothing and the gin files have no model,
      or no recipe is for its stage, or the recorded corpus is not there, or as
      `parsed`.
  """
  own = read(None, gin_files, modules=modules)
  if waits and model_dir is not None and MODEL[0] not in own.names:
    _wait_for_trainer(epath.Path(model_dir))
  chosen, kept = files_of_run(
    model_dir, recipe, gin_files, names=own.names, function=function
  )
  first: list[Source] = [chosen] if chosen else []
  if kept is not None:
    first.append(kept if recipe is not None else kept.whole())
  if not checks:
    return read(function, [*first, *gin_files], modules=own.modules)
  bindings = list(bindings)
  bound = {binding.partition("=")[0].strip() for binding in bindings}
  directories = {"model_dir": model_dir, "corpus_dir": corpus_dir}
  for name, path in directories.items():
    if path is not None and name.upper() in bound:
      raise ConfigurationError(
        f"--{name}={path} and --gin.{name.upper()} say the same twice; give "
        "one of them"
      )
    if path is not None:
      bindings.append(f"{name.upper()} = {str(path)!r}")
  try:
    made = parsed(
      function,
      [*first, *gin_files],
      bindings,
      given=given,
      modules=own.modules,
    )
  except ConfigurationError as error:
    files = [str(one.path if isinstance(one, Kept) else one) for one in first]
    advice = f" (with {' and '.join(files)})" if files else ""
    raise ConfigurationError(f"{error}{advice}") from error
  if kept is not None:
    _require_corpus(made, kept)
  return made


def files_of_run(
  model_dir: epath.PathLike | None,
  recipe: Recipe | None,
  gin_files: Sequence[str] = (),
  *,
  names: Collection[str] = (),
  function: Callable[..., Any] | None = None,
) -> tuple[str, Kept | None]:
  """Returns the recipe before the files that are given, and what a run keeps.

  The names are those that the given files bind, and the function that which
  they configure.

  Raises:
    ConfigurationError: The run keeps nothing, or an older version made it, or
      no recipe is for its stage.
  """
  if gin_files and (model_dir is None or recipe is None):
    return "", None
  if model_dir is None:
    return recipe if isinstance(recipe, str) else "", None
  found = Kept.find(model_dir)
  is_whole = not isinstance(recipe, str | None) and (
    function is not None
    and Bindings().required(function) <= {"MODEL_DIR", *names}
  )
  if found is None and not (
    gin_files and (is_whole or isinstance(recipe, str))
  ):
    raise _keeps_nothing(run_directory(model_dir))
  if isinstance(recipe, str | None):
    return recipe or "", found
  if is_whole or found is None:
    return "", found
  for one in recipe:
    if one == found.evaluation:
      return one, found
  whose = f"the stage {found.stage}" if found.stage else "an import"
  raise ConfigurationError(
    f"no recipe is meant for {whose} ({found.path}); choose one: "
    + ", ".join(f"--gin_file={file}" for file in recipe)
  )


def require_directory(model_dir: epath.Path) -> None:
  """Raises `ConfigurationError` unless a MODEL_DIR is there."""
  if not model_dir.exists():
    raise ConfigurationError(
      f"MODEL_DIR {model_dir} does not exist; give the directory of a run"
    )


def _keeps_nothing(folder: epath.Path) -> ConfigurationError:
  """Returns the error of a directory without the file of a run."""
  require_directory(folder)
  if any((folder / name).exists() for name in _OLDER_FILES):
    return ConfigurationError(
      f"{folder} was made by an older version: it has no {FILE}; start a "
      "new run with it as INITIAL_CHECKPOINT, or import its weights again, and "
      "give all of the configuration as --gin_file"
    )
  return ConfigurationError(
    f"{folder} has no {FILE}; give the directory of a run, or wait until "
    "its trainer has started"
  )


def _require_corpus(made: Bindings, found: Kept) -> None:
  """Checks that a corpus which a run has recorded is there."""
  path = made.names.get("CORPUS_DIR")
  if not isinstance(path, str) or path != found.shared.get("CORPUS_DIR"):
    return
  if not is_remote(path) and not epath.Path(path).exists():
    raise ConfigurationError(
      f"CORPUS_DIR {path}, as {found.path} has recorded it, is not there; "
      "pass --corpus_dir"
    )


def _wait_for_trainer(folder: epath.Path) -> None:
  """Waits until a run has begun, and says so from time to time."""
  say_at = 0.0
  while not _has_begun(folder):
    if time.monotonic() >= say_at:
      say_at = time.monotonic() + _REMINDER_SECONDS
      logging.info(
        "waiting for a run to begin in MODEL_DIR %s; `python -m "
        "realm_jax.train` with the same --model_dir begins one",
        folder if is_remote(folder) else folder.absolute(),
      )
    time.sleep(_POLL_SECONDS)


def _has_begun(folder: epath.Path) -> bool:
  """Returns whether a run has its configuration, or else a checkpoint.

  A trainer writes its configuration first. The folder of the checkpoints says
  nothing: it may be empty.
  """
  files = (FILE, _OLDER_FILES[0])
  return any((run_directory(folder) / name).exists() for name in files) or any(
    name.isdigit() for name in list_names(folder / "checkpoints")
  )
