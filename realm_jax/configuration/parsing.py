"""Reads gin files and bindings as data, resolves names, and checks values.

gin's own parser splits a text into statements. Their bindings go to a
`Bindings`, and never to gin's global configuration.

A command for a run reads these in order, so that later ones override:

1. its recipe in gin/runs, if it has one;
2. the run's shared settings (`kept`), or all settings to continue the run;
3. the gin files and bindings of the command line.
"""

import ast
import difflib
import functools
import importlib
import inspect
import io
import pkgutil
import time
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias

from absl import logging
from etils import epath

from gin import config_parser
from gin import utils as gin_utils
from realm_jax import settings
from realm_jax.configuration.bindings import (
  REQUIRED,
  UNBOUND,
  Bindings,
  ConfigurationError,
  Name,
  Reference,
  Target,
)
from realm_jax.configuration.kept import FILE, Kept, run_directory
from realm_jax.storage.paths import is_remote

# Names that the files in gin/models bind.
_MODEL = {"RETRIEVER", "READER"}
# First characters of gin's literals and references, other than numbers, True,
# False and None.
_OF_GIN = ("%", "@", '"', "'", "[", "{", "(")
# Errors of reading for malformed text, and for unknown names.
_GIN_ERRORS = (
  *(OSError, SyntaxError, tokenize.TokenError, ValueError),
  *(ImportError, AttributeError),
)
# Path of a gin file or of a config.json, or an open gin file.
Source: TypeAlias = str | IO[str]
# A file in gin/runs, "" for none, or several files. From several, the run's
# stage chooses one, unless a file on the command line binds EVALUATION.
Recipe = str | Sequence[str]
# Root of the clone, so that `gin/runs/…` is found from any working directory;
# and the folder of the recipes if the package is installed without a clone.
_PROJECT_DIR = Path(__file__).resolve().parent.parent.parent
_INSTALLED_RECIPES = _PROJECT_DIR / "realm_jax" / "recipes"
_POLL_SECONDS, _REMINDER_SECONDS = 1.0, 30.0


class _Reader(config_parser.ParserDelegate):
  """Reads a gin file into bindings."""

  def __init__(self, bindings: Bindings):
    self._bindings = bindings
    self._imports: dict[str, Any] = {}

  def configurable_reference(
    self, scoped_configurable_name: str, evaluate: bool
  ) -> Any:
    scope, _, name = scoped_configurable_name.rpartition("/")
    return Reference(self._target(name), scope, evaluate)

  def macro(self, macro_name: str) -> Any:
    return Name(macro_name)

  def read(self, source: Source) -> None:
    """Reads a file, or a run's shared settings, and overrides bindings."""
    if isinstance(source, str) and source.endswith(FILE):
      Kept.read(source).bind(self._bindings)
    elif isinstance(source, str):
      with (
        _located(source).open("rb") as file,
        # Some editors write a byte order mark.
        io.TextIOWrapper(file, "utf-8-sig") as text,
      ):
        try:
          self.read(text)
        except UnicodeDecodeError as error:
          raise ConfigurationError(
            f"{source} is not UTF-8 (0x{error.object[error.start]:02x} at byte "
            f"{error.start + 1}); convert the file to UTF-8"
          ) from None
    else:
      for statement in config_parser.ConfigParser(source, self):
        with gin_utils.try_with_location(statement.location):
          self._take(statement)

  def _take(self, statement: Any) -> None:
    """Applies a statement."""
    match statement:
      case config_parser.ImportStatement(module="__gin__.dynamic_registration"):
        # Without it, gin knows only decorated classes, and there are none here.
        self._imports["gin"] = importlib.import_module("gin.config")
      case config_parser.ImportStatement(module=module):
        imported = importlib.import_module(module)
        self._bindings.modules.add(module)
        if not (statement.is_from or statement.alias):
          imported = importlib.import_module(statement.bound_name())
        self._imports[statement.bound_name()] = imported
      case config_parser.IncludeStatement(filename=filename):
        _read(self._bindings, [filename])
      case config_parser.BindingStatement(arg_name="", value=value):
        name = f"{statement.scope}/{statement.selector}".strip("/")
        self._bindings.names[name] = value
      case config_parser.BindingStatement(scope=scope, value=value):
        target = self._target(statement.selector)
        self._bindings.bind(scope, target, statement.arg_name, value)

  def _target(self, name: str) -> Target:
    """Returns the target `module.Class`, or a known one whose name ends so."""
    first, *others = name.split(".")
    if first in self._imports:
      ends = {functools.reduce(getattr, others, self._imports[first])}
    else:
      ends = {
        one.target
        for one in self._bindings.all_parameters()
        if f".{one.target.__module__}.{one.where}".endswith(
          f".{name}.{one.name}"
        )
      }
    if len(ends) == 1 and callable(target := ends.pop()):
      return target
    raise ConfigurationError(
      f"{name} is no class or function, or several; import its module in a gin "
      "file"
    )


def _located(path: str) -> epath.Path:
  """Returns the path of a gin file: as given, or among the recipes."""
  location = epath.Path(path)
  if location.is_absolute() or location.is_file():
    return location
  if path.startswith("gin/") and _INSTALLED_RECIPES.is_dir():
    return epath.Path(_INSTALLED_RECIPES / path.removeprefix("gin/"))
  return epath.Path(_PROJECT_DIR / path)


def parsed(
  function: Target | str | None,
  sources: Sequence[Source] = (),
  bindings: Sequence[str] = (),
  *,
  model_dir: epath.PathLike | None = None,
  corpus_dir: epath.PathLike | None = None,
  recipe: Recipe | None = "",
  modules: Iterable[str] = (),
  arguments: Mapping[str, Any] | None = None,
  waits: bool = False,
  checks: bool = True,
) -> Bindings:
  """Returns the bindings of sources; later ones override earlier ones.

  Args:
    function: Function or class to configure, if any; or `MODULE:NAME`, which is
      imported once the run has been found.
    sources: Paths of gin files, or of the config.json of a run or an import,
      which binds the shared settings; and open gin files.
    bindings: `NAME = VALUE`, over all sources.
    model_dir: MODEL_DIR of the command's run, or one of its checkpoints. It may
      have been moved.
    corpus_dir: Corpus; None takes the run's recorded corpus.
    recipe: Recipe that the other sources override; None for a command that
      starts the run, or continues it with the whole configuration.
    modules: Modules to import, which may have classes of the run.
    arguments: Arguments of the function that are not configured.
    waits: Whether to wait for the run's trainer to start.
    checks: Whether to check that required names are bound, and their types.

  Raises:
    ConfigurationError: A source is missing, or cannot be read; a binding has an
      unknown name, a value has the wrong type, or a required value is missing;
      or the run has no configuration, or no recipe for its stage, or its corpus
      is missing.
  """
  merged, run = Bindings(modules), None
  try:
    for module in merged.modules:
      importlib.import_module(module)
    if model_dir is not None and not (sources and recipe is None):
      run = _kept_by_run(model_dir, sources, waits)
    # Without a run, sources stand for the recipe as well.
    if model_dir is not None or not sources:
      users = _read(Bindings(modules), sources)
      merged.modules |= users.modules
      _read(merged, _recipe_of(run, recipe, users))
    if run is not None:
      run.bind(merged, is_whole=recipe is None)
    _read(merged, sources)
    if isinstance(function, str):
      function = pkgutil.resolve_name(function)
    if function is not None and function is not merged.root.target:
      merged.root = Reference(function)
    for name, value in (arguments or {}).items():
      merged.bind("", merged.root.target, name, value)
    # Names in use before the bindings, which may replace objects that use them.
    known = {*merged.used_names()}
    values = {}
    for binding in bindings:
      name, _, value = (part.strip() for part in binding.partition("="))
      values[name] = value
    for name, path in (("MODEL_DIR", model_dir), ("CORPUS_DIR", corpus_dir)):
      if path is not None and name in values:
        raise ConfigurationError(
          f"--{name.lower()}={path} and --gin.{name} say the same twice; give "
          "one of them"
        )
      if path is not None:
        values[name] = repr(str(path))
    lines = [_readable(name, value) for name, value in values.items()]
    _read(merged, map(io.StringIO, lines))
    if checks:
      _require_names(merged, values, known)
      _require_types(merged)
    return merged
  except RecursionError as error:
    raise ConfigurationError("a name refers to itself") from error
  except _GIN_ERRORS as error:
    is_ours = isinstance(error, ConfigurationError)
    said = f"{'' if is_ours else 'the gin configuration is wrong: '}{error}"
    if run is not None and model_dir is not None:
      said += f" (with {run_directory(model_dir) / FILE})"
    raise ConfigurationError(said) from error


def _read(bindings: Bindings, sources: Iterable[Source]) -> Bindings:
  for source in sources:
    _Reader(bindings).read(source)
  return bindings


def _kept_by_run(
  model_dir: epath.PathLike, sources: Sequence[Source], waits: bool
) -> Kept | None:
  """Returns the configuration of a run, or None if the sources replace it.

  With `waits`, and without a model in the sources, waits for the trainer.
  """
  folder = run_directory(model_dir)
  if folder.is_file():
    raise ConfigurationError(
      f"MODEL_DIR {folder} is a file; give the directory of a run"
    )
  lacks_model = waits and not _MODEL & {*_read(Bindings(), sources).names}
  # A trainer writes its configuration before anything else.
  while lacks_model and not (folder / FILE).exists():
    logging.log_every_n_seconds(
      logging.INFO,
      "waiting for a run to begin in MODEL_DIR %s; `python -m "
      "realm_jax.train` with the same --model_dir begins one",
      _REMINDER_SECONDS,
      folder if is_remote(folder) else folder.absolute(),
    )
    time.sleep(_POLL_SECONDS)
  if (kept := Kept.find(folder)) or (sources and (waits or folder.exists())):
    return kept
  problem = "does not exist; give the directory of a run"
  if folder.exists():
    problem = f"has no {FILE}; give the directory of a run, or wait until its "
    problem += "trainer has started"
  raise ConfigurationError(f"MODEL_DIR {folder} {problem}")


def _recipe_of(
  run: Kept | None, recipe: Recipe | None, users: Bindings
) -> Sequence[str]:
  """Returns the recipe to read before the bindings of `users`, if any."""
  if recipe is None or isinstance(recipe, str):
    return [recipe] if recipe else []
  if "EVALUATION" in users.names:
    return []
  for candidate in recipe:
    if run is not None and run.evaluation == candidate:
      return [candidate]
  raise ConfigurationError(
    "no recipe evaluates the stage of the run; choose one: "
    + ", ".join(f"--gin_file={file}" for file in recipe)
  )


def _readable(name: str, value: str) -> str:
  """Returns a binding in gin's syntax, with quotes around plain text."""
  if not value:
    raise ConfigurationError(
      f"--gin.{name}= has no value; write --gin.{name}=VALUE"
    )
  if not value.startswith(_OF_GIN):
    try:
      ast.literal_eval(value)
    except (SyntaxError, ValueError):
      value = repr(value)
  return f"{name} = {value}"


def _require_names(
  bindings: Bindings, overrides: Mapping[str, str], before: set[str]
) -> None:
  """Checks that overrides bind names in use, and that all names have values.

  An override may bind a name that was in use only `before` the overrides.
  """
  used, values = bindings.used_names(), bindings.names
  missing = {name for name, is_needed in used.items() if is_needed} - {*values}
  missing |= {name for name, value in values.items() if value == REQUIRED}
  unset = [
    one.where for one in bindings.all_parameters() if one.value == REQUIRED
  ]
  known = before | {*used}
  for name, value in overrides.items():
    if "." not in name and name not in known:
      near = ", ".join(difflib.get_close_matches(name, known))
      advice = f"did you mean {near}?" if near else "--gin_help shows the names"
      raise ConfigurationError(
        f"--gin.{name} binds a name that no gin file uses; {advice}"
      )
    if value.startswith("%") and value[1:] in missing - before:
      raise ConfigurationError(
        f"--gin.{name}={value}: no gin file binds {value[1:]}; want "
        + " or ".join(_objects(bindings) or sorted(f"%{one}" for one in values))
      )
  if missing or unset:
    listed = [*sorted(missing), *unset]
    advice = " ".join(f"--gin.{name}=VALUE" for name in listed)
    advice = f"pass {advice} or a --gin_file that binds it"
    if missing & _MODEL:
      advice = "a model is missing: pass the gin file of one, such as "
      advice += "--gin_file=gin/models/bert_base.gin"
    raise ConfigurationError(f"no value for {', '.join(listed)}; {advice}")


def _require_types(bindings: Bindings) -> None:
  """Checks bound values against the annotations of their parameters."""
  for use in bindings.all_parameters():
    value = bindings.resolved(use.value, lambda _: settings.UNKNOWN)
    if value is UNBOUND or settings.accepts(use.annotation, value):
      continue
    kind = settings.describe(use.annotation)
    if any(
      inspect.isclass(part) and part.__module__.startswith("realm_jax.")
      for part in settings.parts(use.annotation)
    ):
      kind += f", such as one of {', '.join(_objects(bindings))}"
    name, bound = use.key, use.value
    while isinstance(bound, Name):
      name, bound = bound.name, bindings.names[bound.name]
    said = f"{use.where}={value!r}: want {kind}"
    if name is not None:
      said = f"{name}={value!r}: {use.where} wants {kind}; pass "
      said += f"--gin.{name}=VALUE"
    raise ConfigurationError(said)


def _objects(bindings: Bindings) -> list[str]:
  """Returns the names of objects, as `%NAME`."""
  bound = bindings.names.items()
  return sorted(f"%{name}" for name, one in bound if isinstance(one, Reference))
