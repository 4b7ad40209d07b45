"""gin files and bindings: read as data, resolved and checked here.

gin's own parser splits a text into statements. What they bind is kept in a
`Bindings`, and never in gin's global configuration.
"""

import ast
import difflib
import functools
import importlib
import inspect
import io
import tokenize
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias

from etils import epath

from gin import config_parser
from gin import utils as gin_utils
from realm_jax import settings
from realm_jax.configuration.bindings import (
  MODEL,
  REQUIRED,
  UNBOUND,
  Bindings,
  ConfigurationError,
  Name,
  Reference,
  Target,
)
from realm_jax.configuration.kept import FILE, Kept

_NO_MODEL = (
  "a model is missing: pass the gin file of one, such as "
  "--gin_file=gin/models/bert_base.gin"
)
# What a literal or a reference of gin's begins with, other than a number, True,
# False and None.
_OF_GIN = ("%", "@", '"', "'", "[", "{", "(")
# What reading raises for text that is no gin, and for names that are unknown.
_GIN_ERRORS = (
  OSError,
  SyntaxError,
  tokenize.TokenError,
  ValueError,
  ImportError,
  AttributeError,
)
# What is read: paths, open gin files, and what runs keep.
Source: TypeAlias = str | IO[str] | Kept
# The clone's root, so that `gin/runs/…` is found from any working directory,
# and where the recipes are once the package is installed without a clone.
_PROJECT_DIR = Path(__file__).resolve().parent.parent.parent
_INSTALLED_RECIPES = _PROJECT_DIR / "realm_jax" / "recipes"


class _Reader(config_parser.ParserDelegate):
  """Reads gin files into bindings, each with its own imports."""

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
    """Reads a file, an open file, or what a run keeps, over what is bound."""
    if isinstance(source, str) and source.endswith(FILE):
      source = Kept.read(source)
    if isinstance(source, Kept):
      source.bind(self._bindings)
    elif isinstance(source, str):
      with _located(source).open("r") as file:
        self.read(file)
    else:
      before, self._imports = self._imports, {}
      for statement in config_parser.ConfigParser(source, self):
        with gin_utils.try_with_location(statement.location):
          self._take(statement)
      self._imports = before

  def _take(self, statement: Any) -> None:
    """Does what a statement says."""
    match statement:
      case config_parser.ImportStatement(module="__gin__.dynamic_registration"):
        # Without it, gin knows classes that are decorated, and here none are.
        self._imports["gin"] = importlib.import_module("gin.config")
      case config_parser.ImportStatement(module=module):
        found = importlib.import_module(module)
        self._bindings.modules.add(module)
        if not (statement.is_from or statement.alias):
          found = importlib.import_module(statement.bound_name())
        self._imports[statement.bound_name()] = found
      case config_parser.IncludeStatement(filename=filename):
        self.read(filename)
      case config_parser.BlockDeclaration(selector=selector):
        self._target(selector)
      case config_parser.BindingStatement(arg_name="", value=value):
        name = f"{statement.scope}/{statement.selector}".strip("/")
        self._bindings.names[name] = value
      case config_parser.BindingStatement(scope=scope, value=value):
        target = self._target(statement.selector)
        self._bindings.bind(scope, target, statement.arg_name, value)

  def _target(self, name: str) -> Target:
    """Returns what `module.Class` means, or the known one whose name it ends.

    Raises:
      ConfigurationError: It is no class or function, or nothing, or several.
    """
    first, *others = name.split(".")
    ends = [
      target
      for target in self._bindings.all_targets()
      if f".{target.__module__}.{target.__qualname__}".endswith(f".{name}")
    ]
    if first in self._imports:
      ends = [functools.reduce(getattr, others, self._imports[first])]
    if len(ends) == 1 and callable(ends[0]):
      return ends[0]
    raise ConfigurationError(
      f"{name} is no class or function, or several; import its module in a gin "
      "file"
    )


def _located(path: str) -> epath.Path:
  """Returns where a gin file is: as it is given, or among the recipes."""
  own = epath.Path(path)
  if own.is_absolute() or own.is_file():
    return own
  if path.startswith("gin/") and _INSTALLED_RECIPES.is_dir():
    return epath.Path(_INSTALLED_RECIPES / path.removeprefix("gin/"))
  return epath.Path(_PROJECT_DIR / path)


def parsed(
  function: Target | None,
  sources: Iterable[Source],
  bindings: Sequence[str] = (),
  *,
  given: Iterable[str] = (),
  modules: Iterable[str] = (),
  checks: bool = True,
) -> Bindings:
  """Returns what sources and bindings bind; later ones override earlier ones.

  Args:
    function: What is built of it, if anything is.
    sources: Paths of gin files, or of the config.json of a run or an import,
      which binds what the run shares; open gin files; and what runs keep.
    bindings: `NAME = VALUE`, over all sources.
    given: Parameters of the function that its caller gives.
    modules: Modules to import, in which classes may be that a run names.
    checks: Whether all that is required must be bound, and to the right types.

  Raises:
    ConfigurationError: A source is missing, or cannot be read; or a binding
      names nothing, a value has the wrong type, or a required one is not given.
  """
  made = Bindings()
  made.modules |= {*modules}
  if function is not None:
    made.parameters["", function] = dict.fromkeys(given, settings.UNKNOWN)
  try:
    for module in made.modules:
      importlib.import_module(module)
    for source in sources:
      _Reader(made).read(source)
    # A binding may replace what has a name by what has none.
    used = made.used_names()
    for binding in bindings:
      _Reader(made).read(io.StringIO(_readable(binding)))
    if checks:
      _require_names(made, bindings, used)
      _require_types(made)
  except ConfigurationError:
    raise
  except RecursionError as error:
    raise ConfigurationError("a name refers to itself") from error
  except _GIN_ERRORS as error:
    raise ConfigurationError(
      f"the gin configuration is wrong: {error}"
    ) from error
  return made


def _readable(binding: str) -> str:
  """Returns a binding as gin reads it: a text gets its quotes.

  A value that is neither a literal nor a reference is a text, such as
  `runs/ict`.
  """
  name, _, value = (part.strip() for part in binding.partition("="))
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
  made: Bindings, bindings: Sequence[str], before: Iterable[str]
) -> None:
  """Checks that bindings bind used names, and that no name lacks a value.

  Names that are used no more, but were `before` the bindings, may be bound.
  """
  used, values = made.used_names(), made.names
  missing = {name for name, is_needed in used.items() if is_needed} - {*values}
  missing |= {name for name, value in values.items() if value == REQUIRED}
  unset = [o.where for o in made.all_parameters() if o.value == REQUIRED]
  known = {*used, *before}
  for binding in bindings:
    name, _, value = (part.strip() for part in binding.partition("="))
    if "." not in name and name not in known:
      advice = "--gin_help shows the names"
      if near := difflib.get_close_matches(name, known):
        advice = f"did you mean {', '.join(near)}?"
      raise ConfigurationError(
        f"--gin.{name} binds a name that no gin file uses; {advice}"
      )
    if value.startswith("%") and value[1:] in missing - {*before}:
      raise ConfigurationError(
        f"--gin.{name}={value}: no gin file binds {value[1:]}; want "
        + " or ".join(_objects(made) or sorted(f"%{one}" for one in values))
      )
  if missing or unset:
    listed = [*sorted(missing), *unset]
    advice = " ".join(f"--gin.{name}=VALUE" for name in listed)
    advice = f"pass {advice} or a --gin_file that binds it"
    if missing & {*MODEL}:
      advice = _NO_MODEL
    raise ConfigurationError(f"no value for {', '.join(listed)}; {advice}")


def _require_types(made: Bindings) -> None:
  """Checks bound values against the annotations of their parameters."""
  for use in made.all_parameters():
    name, bound = "", use.value
    if isinstance(bound, Name):
      name, bound = made.followed(bound.name)
    value = made.value_of(bound)
    if bound is UNBOUND or settings.accepts(use.annotation, value):
      continue
    wanted = settings.describe(use.annotation)
    if any(map(_is_own_class, settings.parts(use.annotation))):
      wanted += f", such as one of {', '.join(_objects(made))}"
    if not name:
      raise ConfigurationError(f"{use.where}={value!r}: want {wanted}")
    raise ConfigurationError(
      f"{name}={value!r}: {use.where} wants {wanted}; pass --gin.{name}=VALUE"
    )


def _objects(made: Bindings) -> list[str]:
  """Returns the names of objects, as `%NAME`."""
  return sorted(
    f"%{name}"
    for name, value in made.names.items()
    if isinstance(value, Reference) and value.is_called
  )


def _is_own_class(part: Any) -> bool:
  """Returns whether a part of a type is a class of this project."""
  place = getattr(part, "__module__", "")
  return inspect.isclass(part) and place.startswith("realm_jax.")
