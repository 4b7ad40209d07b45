"""MODEL_DIR/config.json: the configuration that a run keeps, as data.

    {"version": 1,
     "stage": "pretraining", "asked": "masked sentence",
     "evaluation": "gin/runs/eval_masked.gin",
     "shared": {"NUM_CANDIDATES": 8,
                "RETRIEVER": {"kind": "retriever"},
                "retriever.bert": {"kind": "bert"},
                "bert.dropout_rate": {"name": "DROPOUT_RATE"}, …},
     "training": {"NUM_STEPS": 700, …}}

Other commands take what is shared: the models, and the settings with the mark
`settings.OfRun`. `train` alone takes both parts. A key is a name, or a kind and
its field. `kinds` says what a kind may be; a dictionary is `{"items": [[key,
value], …]}`. Nothing in this file can have anything else imported or called, so
that a stranger's MODEL_DIR may be opened.
"""

import dataclasses
import json
import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from absl import logging
from etils import epath

from realm_jax import settings
from realm_jax.configuration import kinds
from realm_jax.configuration.bindings import (
  MODEL,
  Bindings,
  ConfigurationError,
  Name,
  Reference,
)
from realm_jax.storage.atomic import atomic_text_file

FILE = "config.json"
VERSION = 1
_FOLDER_OF_CHECKPOINTS = "checkpoints"
_MAX_BYTES = 1 << 20
# A name, or a kind and its field, either within scopes.
_KEY = re.compile(r"(?:((?:\w+/)*\w+)/)?(?:([\w.:]+)\.)?(\w+)")
# Names modules, of which a run may name those that are in this project.
_MODULES, _OWN_TASKS = "TASK_MODULES", ("tasks",)


def run_directory(model_dir: epath.PathLike) -> epath.Path:
  """Returns the directory of a run, which may be named by a checkpoint."""
  folder = epath.Path(model_dir)
  is_checkpoint = folder.parent.name == _FOLDER_OF_CHECKPOINTS
  return folder.parent.parent if is_checkpoint else folder


def to_keep(
  bindings: Bindings, function: Any = None, stage: object = None
) -> dict[str, Any]:
  """Returns what a run keeps of its configuration, as JSON values.

  Args:
    bindings: The configuration.
    function: What it configures: `TrainConfig`; None for an import.
    stage: Stage of the run; None for an import.

  Raises:
    ConfigurationError: There is an object that no MODEL_DIR can name.
  """
  shared: dict[str, Any] = {}
  names, targets = {}, []
  if function is not None:
    names, targets = bindings.reached(Reference(function))
  for target in targets:
    for one in bindings.parameters_of(target):
      if (mark := settings.of_run(one.annotation)) is not None:
        by_name = bindings.names.get(one.in_capitals, one.default)
        value = by_name if one.has_name else one.bound
        if isinstance(value, Name):
          _, value = bindings.followed(value.name)
        shared[mark.name or one.in_capitals] = value
  model = {name: bindings.names.get(name) for name in MODEL}
  shared |= {name: value for name, value in model.items() if value is not None}
  needed, models = bindings.reached(*shared.values())
  shared |= {name: bindings.names[name] for name in needed}
  shared = _encoded(bindings, shared, models)
  own = {name: bindings.names[name] for name in names if name in bindings.names}
  whole = _encoded(bindings, own, targets)
  return {
    "version": VERSION,
    "stage": None if stage is None else kinds.kind_of(type(stage)),
    "asked": getattr(stage, "asked", None),
    "evaluation": getattr(stage, "evaluation", None),
    "shared": shared,
    "training": {
      key: value
      for key, value in whole.items()
      if key not in shared or shared[key] != value
    },
  }


def _encoded(
  bindings: Bindings, names: Mapping[str, Any], targets: Collection[Any]
) -> dict[str, Any]:
  """Returns values by name, and those of the targets' parameters, as JSON."""
  values = {name: _to_json(value) for name, value in names.items()}
  for (scope, target), bound in bindings.parameters.items():
    if target in targets:
      kind = f"{scope}/{kinds.kind_of(target)}".strip("/")
      for name, value in bound.items():
        values[f"{kind}.{name}"] = _to_json(value)
  return values


def _to_json(value: Any) -> Any:
  match value:
    case Name(name):
      return {"name": name}
    case Reference(target, scope, True):
      kind = {"kind": kinds.kind_of(target)}
      return {**kind, "scope": scope} if scope else kind
    case dict():
      pairs = [[_to_json(k), _to_json(v)] for k, v in value.items()]
      return {"items": pairs}
    case list() | tuple():
      return [_to_json(item) for item in value]
    case str() | int() | float() | None:
      return value
  raise ConfigurationError(
    f"{value!r} cannot be kept in a MODEL_DIR; want numbers, texts, lists, "
    "dictionaries, and objects of dataclasses"
  )


def keep(model_dir: epath.PathLike, kept: Mapping[str, Any]) -> None:
  """Replaces the file of a run, and logs what differs from before.

  Raises:
    OSError: The disk is full, or the directory cannot be written to.
  """
  path = epath.Path(model_dir) / FILE
  if (found := Kept.find(model_dir)) is not None:
    old, new = found.whole().shared, {**kept["shared"], **kept["training"]}
    changes = [
      f"  {name}: {json.dumps(old.get(name))} → {json.dumps(new.get(name))}"
      for name in {**old, **new}
      if old.get(name) != new.get(name)
    ]
    if changes:
      logging.warning(
        "The configuration differs from the one in %s, which it replaces:\n%s",
        path,
        "\n".join(changes),
      )
  text = json.dumps(kept, indent=1, ensure_ascii=False, allow_nan=False)
  with atomic_text_file(path) as file:
    file.write(text + "\n")


@dataclasses.dataclass(frozen=True)
class Kept:
  """The file config.json of a MODEL_DIR, of which the structure is checked.

  Attributes:
    path: Where it is.
    stage: Kind of the stage; None for an import.
    asked: What the stage's reader has learnt to answer; None for all.
    evaluation: Recipe that evaluates the stage.
    shared: What other commands take.
    training: What `train` takes, too.
    is_whole: Whether that is shared as well.
  """

  path: epath.Path
  stage: str | None
  asked: settings.Asked | None
  evaluation: str | None
  shared: dict[str, Any]
  training: dict[str, Any]
  is_whole: bool = False

  def __post_init__(self) -> None:
    settings.require_valid(self)

  @classmethod
  def find(cls, model_dir: epath.PathLike) -> "Kept | None":
    """Returns that of a MODEL_DIR, or of a run's checkpoint, if it has one."""
    path = run_directory(model_dir) / FILE
    return cls.read(path) if path.exists() else None

  @classmethod
  def read(cls, path: epath.PathLike) -> "Kept":
    """Reads a file, which may be anybody's.

    Raises:
      ConfigurationError: It is no such file.
    """
    path = epath.Path(path)
    with path.open("rb") as file:
      text = file.read(_MAX_BYTES + 1)
    problem = f"it has more than {_MAX_BYTES} bytes"
    values: Any = None
    if len(text) <= _MAX_BYTES:
      try:
        values, problem = json.loads(text), "it is no object with a version"
      except (ValueError, RecursionError) as error:
        problem = f"it is no JSON that can be read: {error}"
    if not isinstance(values, dict) or "version" not in values:
      raise ConfigurationError(
        f"{path} is not what a run keeps of its configuration: {problem}"
      )
    if (version := values.pop("version")) != VERSION or type(
      version
    ) is not int:
      raise ConfigurationError(
        f"{path} has version {version!r}, and this program reads {VERSION}; "
        "use the realm_jax that made the run"
      )
    fields = {field.name for field in dataclasses.fields(cls)} - {
      "path",
      "is_whole",
    }
    if unknown := {*values} - fields:
      raise ConfigurationError(
        f"{path} has {', '.join(sorted(unknown))}, which this version does not "
        "know; a newer realm_jax has made the run: use that"
      )
    try:
      own: Any = {name: values.get(name) for name in fields}
      return cls(path, **own)
    except ValueError as error:
      raise ConfigurationError(f"{path}: {error}") from error

  def whole(self) -> "Kept":
    """Returns the same, but all is shared, as `train` takes it."""
    values = {**self.shared, **self.training}
    return dataclasses.replace(self, shared=values, is_whole=True)

  def bind(self, bindings: Bindings) -> None:
    """Binds what is shared; kinds may be in the modules of the bindings.

    Raises:
      ConfigurationError: A value is none that a run keeps, or a kind, a field
        or a name is unknown.
    """
    own, modules = Bindings(), bindings.modules
    for key, value in self.shared.items():
      try:
        if (found := _KEY.fullmatch(key)) is None:
          raise ConfigurationError("want a name, or a kind and its field")
        scope, kind, name = found[1] or "", found[2], found[3]
        if kind and name.upper() == "MODEL_DIR":
          raise ConfigurationError("a run is where it is, and nowhere else")
        if name.upper() == _MODULES:
          made = _modules_from_json(value, modules)
        else:
          made = _from_json(value, modules)
        if kind is None:
          own.names[f"{scope}/{name}".strip("/")] = made
        else:
          own.bind(scope, kinds.class_of(kind, modules), name, made)
      except (ConfigurationError, RecursionError) as error:
        raise ConfigurationError(f"{self.path}: {key}: {error}") from error
    self._require_known(own, bindings)
    bindings.names |= own.names
    for place, bound in own.parameters.items():
      bindings.parameters.setdefault(place, {}).update(bound)

  def _require_known(self, own: Bindings, bindings: Bindings) -> None:
    """Checks that names are settings of runs, or what these refer to.

    What else a command takes, such as where it writes, is not a run's to say.
    """
    classes = [*kinds.own_classes(), *kinds.dataclasses_of(*bindings.modules)]
    known = Bindings()
    known.names, known.parameters = own.names, {**own.parameters}
    for one in classes:
      known.parameters.setdefault(("", one), {})
    shared = {*MODEL}
    for one in known.all_parameters():
      if (mark := settings.of_run(one.annotation)) is not None:
        shared |= {mark.name or one.in_capitals}
    taken = {
      one.in_capitals
      for one in bindings.all_parameters()
      if one.has_name and one.target not in classes
    }
    used = {*known.used_names()} - (taken if not self.is_whole else set())
    if unknown := {*own.names} - shared - used:
      raise ConfigurationError(
        f"{self.path} has {', '.join(sorted(unknown))}, which no setting here "
        "is called; a newer realm_jax has made the run, or a module of its "
        "own, which --modules=MODULE imports if you trust it"
      )


def _from_json(value: Any, modules: Collection[str]) -> Any:
  """Returns what is bound for a value of the file."""
  match value:
    case float() if not math.isfinite(value):
      pass
    case str() | int() | float() | None:
      return value
    case list():
      # A module's fields are hashed.
      return tuple(_from_json(item, modules) for item in value)
    case {"name": str(name), **others} if not others:
      return Name(name)
    case {"kind": str(kind), **others} if others.keys() <= {"scope"}:
      scope = others.get("scope", "")
      if isinstance(scope, str):
        return Reference(kinds.class_of(kind, modules), scope)
    case {"items": [*pairs], **others} if not others:
      made = [_from_json(pair, modules) for pair in pairs]
      if all(isinstance(pair, tuple) and len(pair) == 2 for pair in made):
        return dict(made)
  raise ConfigurationError(
    f"{value!r:.80} is no value that a run keeps; a newer realm_jax may have "
    "made the run"
  )


def _modules_from_json(value: Any, modules: Collection[str]) -> list[str]:
  """Returns names of modules, of which those of the user may be imported."""
  if not settings.accepts(list[str], value):
    raise ConfigurationError(f"{value!r:.80} is no list of modules")
  trusted = {*_OWN_TASKS, *modules}
  return [one if one in trusted else kinds.NotImported(one) for one in value]
