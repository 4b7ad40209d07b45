"""MODEL_DIR/config.json: the configuration that a run keeps, as data.

    {"version": 1,
     "asked": "masked sentence", "evaluation": "gin/runs/eval_masked.gin",
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
import itertools
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
  UNBOUND,
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
_MODULES, _OWN_TASKS = "TASK_MODULES", "realm_jax.tasks"


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
  values = [] if function is None else [Reference(function)]
  names, targets = bindings.reached(*values)
  for one in itertools.chain(*map(bindings.parameters_of, targets)):
    if one.shared_as is not None:
      value = one.default if one.value is UNBOUND else one.value
      if isinstance(value, Name):
        _, value = bindings.followed(value.name)
      shared[one.shared_as] = value
  shared |= {n: bindings.names[n] for n in MODEL if n in bindings.names}
  needed, models = bindings.reached(*shared.values())
  shared |= {name: bindings.names[name] for name in needed}
  shared = _encoded(bindings, shared, models)
  own = {name: bindings.names[name] for name in names if name in bindings.names}
  whole = _encoded(bindings, own, targets)
  return {
    "version": VERSION,
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
    asked: What the reader has learnt to answer; None for all.
    evaluation: Recipe that evaluates the stage; None if there is none.
    shared: What other commands take.
    training: What `train` takes, too.
  """

  path: epath.Path
  asked: settings.Asked | None = None
  evaluation: str | None = None
  shared: dict[str, Any] = dataclasses.field(default_factory=dict)
  training: dict[str, Any] = dataclasses.field(default_factory=dict)

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
    if len(text) > _MAX_BYTES:
      raise ConfigurationError(f"{path} has more than {_MAX_BYTES} bytes")
    try:
      values = json.loads(text)
    except (ValueError, RecursionError) as error:
      raise ConfigurationError(f"{path} is no JSON: {error}") from error
    version = values.pop("version", None) if isinstance(values, dict) else None
    if version != VERSION:
      raise ConfigurationError(
        f"{path} has version {version!r}, and this program reads {VERSION}; "
        "use the realm_jax that made the run"
      )
    try:
      return cls(path, **values)
    except (TypeError, ValueError) as error:
      raise ConfigurationError(
        f"{path}: {error}; a newer realm_jax may have made the run"
      ) from error

  def whole(self) -> "Kept":
    """Returns the same, but all is shared, as `train` takes it."""
    return dataclasses.replace(self, shared={**self.shared, **self.training})

  def bind(self, bindings: Bindings) -> None:
    """Binds what is shared; kinds may be in the modules of the bindings.

    Raises:
      ConfigurationError: A value is none that a run keeps, or a kind, a field
        or a name is unknown.
    """
    own = Bindings()
    for key, value in self.shared.items():
      try:
        _bind(own, key, value, bindings.modules)
      except (ConfigurationError, RecursionError) as error:
        raise ConfigurationError(f"{self.path}: {key}: {error}") from error
    # What else a command takes, such as where it writes, is not a run's to say.
    classes = [*kinds.own_classes(), *kinds.dataclasses_of(*bindings.modules)]
    of_command = {
      one.in_capitals
      for one in bindings.all_parameters()
      if one.has_name and one.target not in classes
    }
    known = Bindings()
    known.names = own.names
    known.parameters = {("", one): {} for one in classes} | own.parameters
    shared = {*MODEL, *(one.shared_as for one in known.all_parameters())}
    shared |= known.used_names().keys() - of_command
    if unknown := own.names.keys() - shared:
      raise ConfigurationError(
        f"{self.path} has {', '.join(sorted(unknown))}, which no setting here "
        "is called; a newer realm_jax has made the run, or a module of its "
        "own, which --modules=MODULE imports if you trust it"
      )
    bindings.names |= own.names
    for place, bound in own.parameters.items():
      bindings.parameters.setdefault(place, {}).update(bound)


def _bind(
  bindings: Bindings, key: str, value: Any, modules: Collection[str]
) -> None:
  """Binds what is kept under a key."""
  if (found := _KEY.fullmatch(key)) is None:
    raise ConfigurationError("want a name, or a kind and its field")
  scope, kind, name = found[1] or "", found[2], found[3]
  if kind and name.upper() == "MODEL_DIR":
    raise ConfigurationError("a run is where it is, and nowhere else")
  made = _from_json(value, modules)
  if name.upper() == _MODULES:
    if not settings.accepts(list[str], made):
      raise ConfigurationError(f"{value!r:.80} is no list of modules")
    trusted = {_OWN_TASKS, *modules}
    made = [one if one in trusted else kinds.NotImported(one) for one in made]
  if kind is None:
    bindings.names[f"{scope}/{name}".strip("/")] = made
  else:
    bindings.bind(scope, kinds.class_of(kind, modules), name, made)


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
