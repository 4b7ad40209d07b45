"""What a command makes of a run: its record, a recipe, files and bindings.

In this order, of which the later ones override:

1. the recipe of the command in gin/runs, which binds what the run leaves open;
2. what the run has recorded of its model and its data;
3. the gin files and bindings that are given to the command.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import logging
from etils import epath

from realm_jax.configuration.errors import ConfigurationError
from realm_jax.configuration.parsing import bound_value, configures, parsed
from realm_jax.configuration.run_record import RunRecord
from realm_jax.files.object_store import listing
from realm_jax.files.object_store.remote import is_remote

# A file of gin/runs, or one for each class of stages.
DefaultRecipe = str | Mapping[str, str]
# gin text of further values that follow from what stands in a MODEL_DIR.
ValuesOfRun = Callable[[RunRecord], Mapping[str, str]]

_POLL_SECONDS = 1.0
_REMINDER_SECONDS = 30.0


@contextlib.contextmanager
def parsed_for_run(
  function: Callable[..., Any],
  model_dir: epath.PathLike,
  *,
  default_recipe: DefaultRecipe,
  corpus_dir: epath.PathLike | None = None,
  gin_files: Sequence[str] = (),
  bindings: Sequence[str] = (),
  search_paths: Sequence[str] = (".",),
  values_of_run: ValuesOfRun = lambda record: {},
  waits: bool = False,
) -> Iterator[RunRecord | None]:
  """Sets gin's configuration for a run during a `with` block.

  Args:
    function: Function that the command calls. Gin files that bind none of its
      arguments are read over the default recipe.
    model_dir: MODEL_DIR of a run, or one of its checkpoints. It may have been
      moved since.
    default_recipe: Recipe for where the gin files are none for the function.
    corpus_dir: Corpus; None takes the one that the run has recorded.
    gin_files: Gin files, which may be recipes of their own.
    bindings: `NAME = VALUE`.
    search_paths: Folders in which gin files are looked for.
    values_of_run: Function that returns gin text of further values by name,
      which a file of gin/runs does not override.
    waits: Whether to wait for a trainer to start.

  Yields:
    The record of the run; None if it has none and the gin files need none.

  Raises:
    ConfigurationError: The run has no record and the gin files are no recipe,
      or no recipe is for its stage, or the recorded corpus is not there, or as
      `parsed`.
  """
  given = with_directories(bindings, model_dir=model_dir, corpus_dir=corpus_dir)
  files, paths = list(gin_files), {"search_paths": search_paths}
  is_whole = bool(files) and configures(files, function, **paths)
  if waits and not is_whole:
    _wait_for_trainer(model_dir)
  record, advice = RunRecord.find(model_dir), ""
  if not is_whole:
    recipe = recipe_for(record, model_dir, default_recipe)
    files.insert(0, recipe)
    advice = f" (with the recipe {recipe})"
  of_run = None
  if record is not None:
    values = values_of_run(record)
    lines = [f"{name} = {value}" for name, value in values.items()]
    of_run = "\n".join([record.text(), *lines])
  with contextlib.ExitStack() as stack:
    try:
      stack.enter_context(parsed(files, given, of_run=of_run, **paths))
    except ConfigurationError as error:
      raise ConfigurationError(f"{error}{advice}") from error
    if record is not None:
      _require_corpus(record)
    yield record


def with_directories(
  bindings: Sequence[str], **directories: epath.PathLike | None
) -> list[str]:
  """Returns bindings with those of the directories that are given.

  Raises:
    ConfigurationError: A binding names such a directory, too.
  """
  bound = {binding.partition("=")[0].strip() for binding in bindings}
  given = {n: path for n, path in directories.items() if path is not None}
  for name, path in given.items():
    if name.upper() in bound:
      raise ConfigurationError(
        f"--{name}={path} and --gin.{name.upper()} say the same twice; give "
        "one of them"
      )
  return [
    *(f"{name.upper()} = {str(path)!r}" for name, path in given.items()),
    *bindings,
  ]


def recipe_for(
  record: RunRecord | None,
  model_dir: epath.PathLike,
  recipe: DefaultRecipe,
) -> str:
  """Returns the recipe for the stage of a run.

  Raises:
    ConfigurationError: The run has no record, or no recipe is for its stage.
  """
  if record is None:
    raise _without_record(epath.Path(model_dir))
  if isinstance(recipe, str):
    return recipe
  if record.stage not in recipe:
    whose = f"the stage {record.stage}" if record.stage else "an import"
    raise ConfigurationError(
      f"no recipe is meant for {whose} ({record.path}); choose one: "
      + ", ".join(f"--gin_file={file}" for file in recipe.values())
    )
  return recipe[record.stage]


def require_directory(model_dir: epath.Path) -> None:
  """Checks that a MODEL_DIR is there.

  Raises:
    ConfigurationError: It is not.
  """
  if not model_dir.exists():
    raise ConfigurationError(
      f"MODEL_DIR {model_dir} does not exist; give the directory of a run"
    )


def _without_record(model_dir: epath.Path) -> ConfigurationError:
  """Returns the error of a directory that has no configuration of a run."""
  require_directory(model_dir)
  return ConfigurationError(
    f"{model_dir} has no config.gin; give the directory of a run, or wait "
    "until its trainer has started"
  )


def _require_corpus(record: RunRecord) -> None:
  """Checks that a corpus which the record names is there."""
  path = bound_value("CORPUS_DIR")
  if path is None or path != record.value("CORPUS_DIR") or is_remote(path):
    return
  if not epath.Path(path).exists():
    raise ConfigurationError(
      f"CORPUS_DIR {path}, as {record.path} has recorded it, is not there; "
      "pass --corpus_dir"
    )


def _wait_for_trainer(model_dir: epath.PathLike) -> None:
  """Waits until a run has begun, and says so from time to time."""
  folder = epath.Path(model_dir)
  say_at = 0.0
  while not _has_begun(folder):
    if time.monotonic() >= say_at:
      say_at = time.monotonic() + _REMINDER_SECONDS
      logging.info(
        "waiting for a run to begin in MODEL_DIR %s, %s; `python -m "
        "realm_jax.train` with the same --model_dir begins one",
        folder if is_remote(folder) else folder.absolute(),
        "which has no config.gin yet"
        if folder.exists()
        else "which is not there yet",
      )
    time.sleep(_POLL_SECONDS)


def _has_begun(folder: epath.Path) -> bool:
  """Returns whether a run has its configuration, or else a checkpoint.

  A trainer writes its configuration first. The folder of the checkpoints says
  nothing: it may be empty.
  """
  return RunRecord.find(folder) is not None or any(
    name.isdigit() for name in listing.names_in(folder / "checkpoints")
  )
