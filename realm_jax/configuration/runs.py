"""What a run keeps of its configuration, and what a command makes of it.

`realm_jax.train` writes two gin files to MODEL_DIR: config.gin is the whole
configuration, by which `--model_dir` alone continues the run. model.gin is what
other commands need: the models, and the settings with the mark
`settings.OfRun`. An import writes a model.gin, too. What belongs to the process
or the data split that trained, such as the batch size, the seed or the mesh, is
not in it.

Such a command reads, one after the other, so that the later ones override:

1. its recipe in gin/runs, if it has one;
2. model.gin;
3. the gin files and bindings that are given to it.
"""

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from absl import logging
from etils import epath

import gin
from realm_jax import settings
from realm_jax.configuration import names
from realm_jax.configuration.names import CONFIG, MACRO
from realm_jax.configuration.parsing import (
  MODEL,
  ConfigurationError,
  names_in,
  own_configuration,
  parsed,
)
from realm_jax.storage.paths import is_remote, list_names
from realm_jax.training import kept_configuration
from realm_jax.training.kept_configuration import run_directory

# A file of gin/runs, "" for none, or one for each class of stages. A file that
# is given to the command takes the place of the latter if it binds all that the
# command's function requires by name.
Recipe = str | Mapping[str, str]

_HEADER = "# What other commands take from this run."
_STAGE = "# Stage: "
_POLL_SECONDS = 1.0
_REMINDER_SECONDS = 30.0


def kept_files(stage: object) -> dict[str, str]:
  """Returns what a run of a stage keeps of gin's configuration, by file."""
  whole, macros = gin.config_str(), names.macros()
  kept = {}
  for one in names.parameters():
    if (mark := settings.of_run(one.annotation)) is not None:
      by_name = macros.get(one.macro, one.default)
      value = by_name if one.has_name else one.bound
      kept[mark.name or one.macro, MACRO] = {"value": value}
  for name in {*MODEL} & {*macros}:
    kept[name, MACRO] = {"value": macros[name]}
  waiting = [*kept]
  while waiting:
    references: Iterator[Any] = gin.config.iterate_references(
      kept[waiting.pop()]
    )
    for reference in references:
      reached = [reference.config_key]
      if not names.is_macro(reference):
        reached = [key for key in CONFIG if key[1] == reference.config_key[1]]
      for key in {*reached} & {*CONFIG} - {*kept}:
        kept[key] = CONFIG[key]
        waiting.append(key)
  with own_configuration():
    gin.parse_config("from __gin__ import dynamic_registration")
    CONFIG.update(kept)
    of_stage = _STAGE + type(stage).__name__
    model = "\n".join([_HEADER, of_stage, gin.config_str()])
  return {kept_configuration.MODEL: model, kept_configuration.WHOLE: whole}


class KeptModel(NamedTuple):
  """The file model.gin of a MODEL_DIR, and its text."""

  path: epath.Path
  text: str

  @classmethod
  def find(cls, model_dir: epath.PathLike) -> "KeptModel | None":
    """Returns that of a MODEL_DIR, or of a run's checkpoint, if it has one."""
    path = run_directory(model_dir) / kept_configuration.MODEL
    return cls(path, path.read_text()) if path.exists() else None

  @property
  def stage(self) -> str | None:
    """Class of the stage, such as `OpenQa`; None for an import."""
    found = re.search(f"^{_STAGE}(\\w+)$", self.text, re.MULTILINE)
    return found and found[1]

  def recipe(self, recipes: Mapping[str, str]) -> str:
    """Returns the recipe for the stage, or raises ConfigurationError."""
    if self.stage in recipes:
      return recipes[self.stage]
    whose = f"the stage {self.stage}" if self.stage else "an import"
    raise ConfigurationError(
      f"no recipe is meant for {whose} ({self.path}); choose one: "
      + ", ".join(f"--gin_file={file}" for file in recipes.values())
    )


def files_of_run(
  function: Callable[..., Any] | None,
  model_dir: epath.PathLike | None,
  recipe: Recipe | None,
  gin_files: Sequence[str] = (),
) -> tuple[list[str], KeptModel | None]:
  """Returns the gin files before those that are given, and what the run keeps.

  The function is that which they configure, and needed with gin files.

  Raises:
    ConfigurationError: The run keeps too little, or an older version made it,
      or no recipe is for its stage.
  """
  if gin_files and (model_dir is None or recipe is None):
    return [], None
  if model_dir is None:
    return [recipe] if recipe and isinstance(recipe, str) else [], None
  folder, model = run_directory(model_dir), KeptModel.find(model_dir)
  if recipe is None:
    whole = folder / kept_configuration.WHOLE
    if model is None or not whole.exists():
      raise _keeps_too_little(folder)
    return [str(whole)], None
  if isinstance(recipe, Mapping):
    is_whole = function is not None and names.required(function) <= {
      "MODEL_DIR",
      *names_in(gin_files),
    }
    if model is None and not is_whole:
      raise _keeps_too_little(folder)
    recipe = "" if is_whole or model is None else model.recipe(recipe)
  if model is None and not gin_files:
    raise _keeps_too_little(folder)
  kept = "" if model is None else str(model.path)
  return [file for file in (recipe, kept) if file], model


@contextlib.contextmanager
def parsed_for_run(
  function: Callable[..., Any],
  model_dir: epath.PathLike | None,
  *,
  recipe: Recipe | None = "",
  corpus_dir: epath.PathLike | None = None,
  gin_files: Sequence[str] = (),
  bindings: Sequence[str] = (),
  given: Sequence[str] = (),
  waits: bool = False,
) -> Iterator[KeptModel | None]:
  """Sets gin's configuration for a run during a `with` block.

  Args:
    function: Function that the command calls.
    model_dir: MODEL_DIR of a run, or one of its checkpoints. It may have been
      moved since. None leaves it to the gin files.
    recipe: Recipe over which the others are read; None for a command that
      makes the run, or continues it by the whole configuration.
    corpus_dir: Corpus; None takes the one that the run has recorded.
    gin_files, bindings, given: As `parsed` takes them. With a model, gin files
      need no run that keeps one.
    waits: Whether to wait for a trainer to start.

  Yields:
    What the run keeps; None if it keeps nothing and the gin files suffice.

  Raises:
    ConfigurationError: The run keeps no model and the gin files have none, or
      no recipe is for its stage, or the recorded corpus is not there, or as
      `parsed`.
  """
  if waits and model_dir is not None and MODEL[0] not in names_in(gin_files):
    _wait_for_trainer(epath.Path(model_dir))
  first, model = files_of_run(function, model_dir, recipe, gin_files)
  files = [*first, *gin_files]
  bound = {binding.partition("=")[0].strip() for binding in bindings}
  directories = {"model_dir": model_dir, "corpus_dir": corpus_dir}
  bindings = list(bindings)
  for name, path in directories.items():
    if path is not None and name.upper() in bound:
      raise ConfigurationError(
        f"--{name}={path} and --gin.{name.upper()} say the same twice; give "
        "one of them"
      )
    if path is not None:
      bindings.append(f"{name.upper()} = {str(path)!r}")
  with contextlib.ExitStack() as stack:
    try:
      stack.enter_context(parsed(function, files, bindings, given=given))
    except ConfigurationError as error:
      advice = f" (with {' and '.join(first)})" if first else ""
      raise ConfigurationError(f"{error}{advice}") from error
    if model is not None:
      _require_corpus(model)
    yield model


def require_directory(model_dir: epath.Path) -> None:
  """Raises `ConfigurationError` unless a MODEL_DIR is there."""
  if not model_dir.exists():
    raise ConfigurationError(
      f"MODEL_DIR {model_dir} does not exist; give the directory of a run"
    )


def _keeps_too_little(folder: epath.Path) -> ConfigurationError:
  """Returns the error of a directory that lacks a file of its configuration."""
  require_directory(folder)
  if (folder / kept_configuration.WHOLE).exists():
    return ConfigurationError(
      f"{folder} was made by an older version: it has no "
      f"{kept_configuration.MODEL}; start a new run with it as "
      "INITIAL_CHECKPOINT, or give all of the configuration as --gin_file"
    )
  return ConfigurationError(
    f"{folder} has no {kept_configuration.MODEL}; give the directory of a run, "
    "or wait until its trainer has started"
  )


def _require_corpus(model: KeptModel) -> None:
  """Checks that a corpus which a run has recorded is there."""
  path = names.macros().get("CORPUS_DIR")
  if not isinstance(path, str) or repr(path) not in model.text:
    return
  if not is_remote(path) and not epath.Path(path).exists():
    raise ConfigurationError(
      f"CORPUS_DIR {path}, as {model.path} has recorded it, is not there; "
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
  files = (kept_configuration.MODEL, kept_configuration.WHOLE)
  return any((run_directory(folder) / name).exists() for name in files) or any(
    name.isdigit() for name in list_names(folder / "checkpoints")
  )
