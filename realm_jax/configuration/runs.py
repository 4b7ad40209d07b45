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
from realm_jax.configuration.parsing import Source, parsed
from realm_jax.storage.paths import is_remote, list_names

# A file of gin/runs, "" for none, or those of which the run's stage chooses
# one, unless a file that is given to the command binds this name.
Recipe = str | Sequence[str]
_EVALUATION = "EVALUATION"

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
    checks: Whether all that is required must be there.

  Raises:
    ConfigurationError: The run keeps nothing and the gin files have no model,
      or no recipe is for its stage, or the recorded corpus is not there, or as
      `parsed`.
  """
  own = parsed(None, gin_files, modules=modules, checks=False)
  if waits and model_dir is not None and MODEL[0] not in own.names:
    _wait_for_trainer(epath.Path(model_dir))
  kept = kept_by_run(model_dir, recipe, gin_files=gin_files, waits=waits)
  first: list[Source] = []
  if model_dir is not None or not gin_files:
    chosen = recipe_for_run(kept, recipe, own.names)
    first += [chosen] if chosen else []
  if kept is not None:
    first.append(kept if recipe is not None else kept.whole())
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
      checks=checks,
    )
  except ConfigurationError as error:
    files = [str(one.path if isinstance(one, Kept) else one) for one in first]
    advice = f" (with {' and '.join(files)})" if files else ""
    raise ConfigurationError(f"{error}{advice}") from error
  if kept is not None and checks:
    _require_corpus(made, kept)
  return made


def kept_by_run(
  model_dir: epath.PathLike | None,
  recipe: Recipe | None,
  *,
  gin_files: Sequence[str] = (),
  waits: bool = False,
) -> Kept | None:
  """Returns what a run keeps; None where gin files stand for it.

  The arguments are as in `parsed_for_run`.

  Raises:
    ConfigurationError: It is not there, or keeps nothing, or an older version
      made it.
  """
  if model_dir is None or (gin_files and recipe is None):
    return None
  folder = run_directory(model_dir)
  found = Kept.find(folder)
  if found is not None or (gin_files and (waits or folder.exists())):
    return found
  if not folder.exists():
    problem = "does not exist; give the directory of a run"
  elif any((folder / name).exists() for name in _OLDER_FILES):
    problem = (
      f"was made by an older version: it has no {FILE}; start a new run with "
      "it as INITIAL_CHECKPOINT, or import its weights again, and give all of "
      "the configuration as --gin_file"
    )
  else:
    problem = (
      f"has no {FILE}; give the directory of a run, or wait until its trainer "
      "has started"
    )
  raise ConfigurationError(f"MODEL_DIR {folder} {problem}")


def recipe_for_run(
  kept: Kept | None,
  recipe: Recipe | None,
  names: Collection[str] = (),
) -> str:
  """Returns the recipe that is read first, "" if there is none.

  Of several, it is that of the run's stage, unless gin files choose an
  evaluation by the `names` that they bind.

  Raises:
    ConfigurationError: No recipe is for the stage.
  """
  if isinstance(recipe, str | None):
    return recipe or ""
  if _EVALUATION in names:
    return ""
  for one in recipe:
    if kept is not None and kept.evaluation == one:
      return one
  where = "" if kept is None else f" of the run that made {kept.path}"
  raise ConfigurationError(
    f"no recipe evaluates the stage{where}; choose one: "
    + ", ".join(f"--gin_file={file}" for file in recipe)
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
  run, names = run_directory(folder), (FILE, *_OLDER_FILES)
  # A trainer writes its configuration first. The folder of the checkpoints says
  # nothing: it may be empty.
  while not any((run / name).exists() for name in names) and not any(
    name.isdigit() for name in list_names(folder / "checkpoints")
  ):
    if time.monotonic() >= say_at:
      say_at = time.monotonic() + _REMINDER_SECONDS
      logging.info(
        "waiting for a run to begin in MODEL_DIR %s; `python -m "
        "realm_jax.train` with the same --model_dir begins one",
        folder if is_remote(folder) else folder.absolute(),
      )
    time.sleep(_POLL_SECONDS)
