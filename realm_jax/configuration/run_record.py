"""The configuration that a run keeps, and what of it other commands need.

`realm_jax.train` writes the whole configuration of a run when it starts, to
MODEL_DIR/config.gin, as t5x does; `import_weights` writes the model alone, to
MODEL_DIR/model.gin. Another command takes from it what belongs to the model and
its data. What belongs to the process or the data split that trained it (batch
size, task, split, seed, steps, mesh) comes from the command's own recipe.

The text is read statement by statement, and only what is taken is given to gin.
So the modules of the training, and of t5x, are not imported.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from etils import epath

from gin import config_parser
from realm_jax.configuration.errors import ConfigurationError
from realm_jax.configuration.names import MODEL
from realm_jax.configuration.parsing import GIN_ERRORS
from realm_jax.files.kept_configuration import NAME

# What `realm_jax/conversion/gin_model.py` writes.
_IMPORTED = "model.gin"
_FOLDER_OF_CHECKPOINTS = "checkpoints"
# Taken besides the model with all that it refers to, where a recipe uses them.
_TAKEN = (
  # Its data: texts, lengths and tasks.
  "CORPUS_DIR",
  "PRETRAINING_CORPUS_DIR",
  "HELD_OUT_BLOCKS",
  "UNMASKED_SPAN_KINDS",
  "TASK_MODULES",
  "QUERY_LENGTH",
  "BLOCK_LENGTH",
  # What it reads, and how it weighs it.
  "NUM_CANDIDATES",
  "NULL_BLOCK",
  "DROP_SOURCE",
  "LOSS_FORM",
  "NUM_READ",
  "INDEX_SCORES",
  # Of which checkpoints it waits for generations.
  "REFRESH_EVERY_STEPS",
)
_DYNAMIC = "__gin__.dynamic_registration"


@dataclasses.dataclass(frozen=True)
class _Reference:
  """`@scope/module.Name()` as it is written."""

  text: str

  @property
  def selector(self) -> str:
    return self.text.strip("@()").rpartition("/")[2]

  def __repr__(self) -> str:
    return self.text


@dataclasses.dataclass(frozen=True)
class _Macro:
  """`%NAME`."""

  name: str

  def __repr__(self) -> str:
    return f"%{self.name}"


class _AsWritten(config_parser.ParserDelegate):
  """Keeps references as they are written, so that nothing is imported."""

  def configurable_reference(
    self, scoped_configurable_name: str, evaluate: bool
  ) -> Any:
    called = "()" if evaluate else ""
    return _Reference(f"@{scoped_configurable_name}{called}")

  def macro(self, macro_name: str) -> Any:
    return _Macro(macro_name)


@dataclasses.dataclass(frozen=True)
class RunRecord:
  """The configuration that a MODEL_DIR keeps.

  Attributes:
    path: File that it was read from.
    content: gin text.
  """

  path: epath.Path
  content: str

  @classmethod
  def find(cls, model_dir: epath.PathLike) -> "RunRecord | None":
    """Returns the record of a MODEL_DIR, or of a run's checkpoint, if any."""
    folder = epath.Path(model_dir)
    if folder.parent.name == _FOLDER_OF_CHECKPOINTS:
      folder = folder.parent.parent
    for name in (NAME, _IMPORTED):
      if (path := folder / name).exists():
        return cls(path, path.read_text())
    return None

  @property
  def stage(self) -> str | None:
    """Class of the stage, such as `OpenQa`; None for an import."""
    selector = self._stage_selector
    return None if selector is None else selector.rpartition(".")[2]

  def value(self, name: str) -> Any:
    """Returns the value of a macro, if it is a literal, or else None."""
    value = self._macros.get(name)
    return None if any(_references(value)) else value

  def text(self) -> str:
    """Returns what commands take of it, as gin text."""
    macros, selectors = self._reached([*MODEL, *_TAKEN])
    stage = self._stage_selector
    lines = [
      statement.format()
      for statement in self._statements
      if isinstance(statement, config_parser.ImportStatement)
      and self._is_used(statement, {*selectors, stage or ""})
    ]
    lines += [
      f'include "{statement.filename}"'
      for statement in self._statements
      if isinstance(statement, config_parser.IncludeStatement)
    ]
    for scope, selector, arg_name, value, _ in self._bindings:
      # Of the stage, values that have no name; _TAKEN says which names.
      is_of_stage = selector == stage and not any(_references(value))
      if selector in selectors or is_of_stage:
        scoped = f"{scope}/{selector}" if scope else selector
        lines.append(f"{scoped}.{arg_name} = {value!r}")
    lines += [f"{name} = {self._macros[name]!r}" for name in macros]
    return "\n".join(lines) + "\n"

  @property
  def _stage_selector(self) -> str | None:
    for statement in self._bindings:
      name = statement.selector.rpartition(".")[2]
      if (name, statement.arg_name) == ("TrainConfig", "stage"):
        return statement.value.selector
    return None

  @functools.cached_property
  def _statements(self) -> Sequence[Any]:
    try:
      return list(config_parser.ConfigParser(self.content, _AsWritten()))
    except GIN_ERRORS as error:
      raise ConfigurationError(
        f"{self.path} cannot be read: {error}"
      ) from error

  @property
  def _bindings(self) -> Iterator[config_parser.BindingStatement]:
    """Yields the bindings of arguments."""
    for statement in self._statements:
      is_binding = isinstance(statement, config_parser.BindingStatement)
      if is_binding and statement.arg_name:
        yield statement

  @functools.cached_property
  def _macros(self) -> dict[str, Any]:
    return {
      f"{s.scope}/{s.selector}" if s.scope else s.selector: s.value
      for s in self._statements
      if isinstance(s, config_parser.BindingStatement) and not s.arg_name
    }

  def _reached(self, names: Sequence[str]) -> tuple[list[str], set[str]]:
    """Returns the macros and selectors that some macros refer to at last."""
    macros: dict[str, None] = {}
    selectors: set[str] = set()
    waiting: list[Any] = [_Macro(name) for name in names]
    while waiting:
      one = waiting.pop()
      if isinstance(one, _Macro):
        if one.name in self._macros and one.name not in macros:
          macros[one.name] = None
          waiting.extend(_references(self._macros[one.name]))
      elif one.selector not in selectors:
        selectors.add(one.selector)
        for statement in self._bindings:
          if statement.selector == one.selector:
            waiting.extend(_references(statement.value))
    return sorted(macros), selectors

  def _is_used(
    self, statement: config_parser.ImportStatement, selectors: set[str]
  ) -> bool:
    if not self._registers_dynamically:
      return True
    used = {selector.partition(".")[0] for selector in selectors}
    return statement.module == _DYNAMIC or statement.bound_name() in used

  @functools.cached_property
  def _registers_dynamically(self) -> bool:
    return any(
      getattr(statement, "module", None) == _DYNAMIC
      for statement in self._statements
    )


def _references(value: Any) -> Iterator[_Reference | _Macro]:
  """Yields the references in a value, which may be nested."""
  if isinstance(value, (_Reference, _Macro)):
    yield value
  elif isinstance(value, (list, tuple)):
    for item in value:
      yield from _references(item)
  elif isinstance(value, dict):
    for item in (*value, *value.values()):
      yield from _references(item)
