"""MODEL_DIR/config.json: the saved configuration of a run, as data.

    {"version": 2,
     "asked": "masked sentence", "evaluation": "gin/runs/eval_masked.gin",
     "shared": {"NUM_CANDIDATES": 8, "RETRIEVER": {"kind": …}, …},
     "config": {"kind": "train", "fields": {
       "num_steps": 700,
       "stage": {"kind": "pretraining", "fields": {"num_candidates": 8, …}},
       "retriever": {"kind": "bert_retriever", "fields": {…}}, …}}}

The tree mirrors the `TrainConfig`. `train` uses its values as defaults. Other
commands read only the shared fields, marked with `settings.OfRun`, and do not
need the classes of other fields.

A MODEL_DIR may come from an untrusted source. So a kind is only looked up here:
it is a name below, an entry point of the group `realm_jax.kinds` of an
installed package, or `MODULE:CLASS`, a dataclass of a module that the user
listed. The file cannot make the program import or call anything else.
"""

import dataclasses
import difflib
import functools
import importlib.metadata
import inspect
import json
import numbers
import os
import pkgutil
import sys
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
from absl import logging
from etils import epath

from realm_jax import settings
from realm_jax.configuration.bindings import (
  Bindings,
  ConfigurationError,
  Reference,
  is_module,
)
from realm_jax.storage.atomic import atomic_text_file

FILE, VERSION = "config.json", 2
_MAX_BYTES = 1 << 20
_CONFIG = "realm_jax.training.config"
_SCORING = "realm_jax.served_reader.scoring"
_STAGES = "realm_jax.training.stages"
_OWN = {
  "auxiliary": f"{_CONFIG}:AuxiliaryStage",
  "beam_over_links": "realm_jax.training.path_search:BeamOverLinks",
  "bert": "realm_jax.models.bert:BertConfig",
  "checkpoints": f"{_CONFIG}:CheckpointConfig",
  "contrastive": f"{_STAGES}.contrastive:Contrastive",
  "cross_encoder": "realm_jax.models.cross_encoder:CrossEncoder",
  "data": "realm_jax.inputs.config:DataConfig",
  "feedback_learning": f"{_STAGES}.feedback:FeedbackLearning",
  "distilled": f"{_STAGES}.reranking:Distilled",
  "graph_qa": f"{_STAGES}.graph_qa:GraphQa",
  "graph_reader": "realm_jax.models.graph_reader:GraphReader",
  "inverse_cloze": f"{_STAGES}.inverse_cloze:InverseCloze",
  "linked_blocks": f"{_STAGES}.graph_qa:LinkedBlocks",
  "lora": "realm_jax.models.lora:LoraConfig",
  "modernbert": "realm_jax.models.modernbert:ModernBertConfig",
  "mesh": f"{_CONFIG}:MeshConfig",
  "open_qa": f"{_STAGES}.open_qa:OpenQa",
  "optimizer": "realm_jax.training.optimizer:OptimizerConfig",
  "path_reader": "realm_jax.models.path_reader:PathReader",
  "path_reading": f"{_STAGES}.paths:PathReading",
  "path_retrieval": f"{_STAGES}.paths:PathRetrieval",
  "path_retriever": "realm_jax.models.path_retriever:PathRetriever",
  "pretraining": f"{_STAGES}.pretraining:Pretraining",
  "bert_reader": "realm_jax.models.reader:BertReader",
  "generative_reader": "realm_jax.models.generative_reader:GenerativeReader",
  "t5": "realm_jax.models.t5:T5Config",
  "reading": f"{_STAGES}.reading:Reading",
  "reranking": f"{_STAGES}.reranking:Reranking",
  "refresh": f"{_CONFIG}:RefreshConfig",
  "bert_retriever": "realm_jax.models.retriever:BertRetriever",
  "served_language_model": f"{_SCORING}:ServedLanguageModel",
  "served_reader": f"{_STAGES}.served_reader:ServedReader",
  "text_to_text": f"{_STAGES}.text_to_text:TextToText",
  "two_hop_qa": f"{_STAGES}.two_hop_qa:TwoHopQa",
  "two_hops": "realm_jax.training.two_hops:TwoHops",
  "train": f"{_CONFIG}:TrainConfig",
}
_OWN_TASKS = "realm_jax.tasks"


class NotImported(str):
  """Name of a module in a MODEL_DIR's configuration, which is not imported."""

  __slots__ = ()


@functools.cache
def _known() -> dict[str, str]:
  """Returns the `MODULE:CLASS` of each kind; packages cannot replace ours."""
  installed = importlib.metadata.entry_points(group="realm_jax.kinds")
  return {entry.name: entry.value for entry in installed} | _OWN


def _dataclass_of(module: str, name: str) -> type | None:
  """Returns the dataclass with this name in an imported module."""
  value: Any = getattr(sys.modules[module], name, None)
  is_own = isinstance(value, type) and value.__module__ == module
  return value if is_own and dataclasses.is_dataclass(value) else None


def _kind_of(cls: type) -> str:
  """Returns the kind of a class."""
  place = f"{cls.__module__}:{cls.__qualname__}"
  known = {other: kind for kind, other in _known().items()}
  if place not in known and _dataclass_of(*place.split(":")) is not cls:
    raise ConfigurationError(
      f"{place} cannot be kept in a MODEL_DIR; make it a dataclass at the top "
      "of its module"
    )
  return known.get(place, place)


def _class_of(kind: str, modules: Collection[str]) -> type:
  """Returns the class of a kind; imports only known or allowed modules."""
  if kind in _known():
    return pkgutil.resolve_name(_known()[kind])
  module, separator, name = kind.partition(":")
  if module in modules and (cls := _dataclass_of(module, name)):
    return cls
  advice = f"want one of {', '.join(_known())}, or a dataclass of your own"
  if separator and module not in modules:
    advice = "nothing is imported because a MODEL_DIR names it; give "
    advice += f"--modules={module} if you trust that module"
  raise ConfigurationError(f"the kind {kind!r} is not known here: {advice}")


def _encoded(value: Any) -> Any:
  """Returns JSON values for objects that `json` cannot encode."""
  match value:
    case numbers.Integral():
      return int(value)
    case numbers.Real():
      return float(value)
    case os.PathLike():
      return os.fspath(value)
    case np.dtype() | type() if np.dtype(value) != object:
      return np.dtype(value).name
    case Reference(target=type() as cls):
      return {"kind": _kind_of(cls), "fields": value.kept}
    case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
      # Flax adds fields to modules. MODEL_DIR may be moved, so it is not saved.
      left_out = {"parent", "name"} if is_module(type(value)) else {"model_dir"}
      names = [field.name for field in dataclasses.fields(value) if field.init]
      fields = {n: getattr(value, n) for n in names if n not in left_out}
      return {"kind": _kind_of(type(value)), "fields": fields}
  raise ConfigurationError(
    f"{value!r} cannot be kept in a MODEL_DIR; want numbers, texts, lists, "
    "dictionaries, types of numbers, paths, and objects of dataclasses"
  )


def _decoded(value: Any, modules: Collection[str]) -> Any:
  """Returns values for `Bindings`; an object is a reference with its values."""
  if isinstance(value, list):
    # A tuple, because a module's fields are hashed.
    return tuple(_decoded(item, modules) for item in value)
  if not isinstance(value, dict):
    return value
  if value.keys() != {"kind", "fields"}:
    return {name: _decoded(one, modules) for name, one in value.items()}
  if not (isinstance(value["kind"], str) and isinstance(value["fields"], dict)):
    raise ConfigurationError(f"{value!r:.80} is no object that a run keeps")
  cls, fields = _class_of(value["kind"], modules), value["fields"]
  if unknown := fields.keys() - inspect.signature(cls).parameters:
    raise ConfigurationError(
      f"the kind {value['kind']!r} has no field {', '.join(sorted(unknown))}; "
      "a newer realm_jax may have made the run"
    )
  kept = {
    name: _task_modules(name, _decoded(one, modules), modules)
    for name, one in fields.items()
  }
  return Reference(cls, kept=kept)


def _task_modules(name: str, value: Any, modules: Collection[str]) -> Any:
  """Returns a value; task modules that the user did not list are marked."""
  if name.lower() != "task_modules" or not isinstance(value, tuple):
    return value
  trusted = (_OWN_TASKS, *modules)
  return tuple(one if one in trusted else NotImported(one) for one in value)


def _shared(tree: Any) -> Iterator[tuple[str, Any]]:
  """Yields the names and values in JSON values that other commands read."""
  if isinstance(tree, dict) and tree.keys() == {"kind", "fields"}:
    types = settings.parameter_types(_class_of(tree["kind"], sys.modules))
    for field, value in tree["fields"].items():
      if mark := settings.mark_of(types.get(field), settings.OfRun):
        yield mark.name or field.upper(), value
      yield from _shared(value)


def _shared_names(config: Any, modules: Collection[str]) -> set[str]:
  """Returns all names that the classes of a configuration may share.

  An untrusted file may have other names, such as a folder to write to. Of
  installed packages, only the kinds in the file are imported.
  """
  text = json.dumps(config)
  kinds = {one for one in _known() if one in _OWN or json.dumps(one) in text}
  classes = [_class_of(kind, modules) for kind in sorted(kinds)]
  for module in modules:
    named = vars(sys.modules[module]).values() if module in sys.modules else ()
    classes += [one for one in named if isinstance(one, type)]
  return {
    mark.name or field.upper()
    for cls in classes
    for field, annotation in settings.parameter_types(cls).items()
    if (mark := settings.mark_of(annotation, settings.OfRun))
  }


def run_directory(model_dir: epath.PathLike) -> epath.Path:
  """Returns the directory of a run, from its path or a checkpoint's."""
  folder = epath.Path(model_dir)
  is_checkpoint = folder.parent.name == "checkpoints"
  return folder.parent.parent if is_checkpoint else folder


@dataclasses.dataclass(frozen=True)
class Kept:
  """The saved configuration of a run.

  Attributes:
    asked: Kind of text that the reader learned to answer; None for all.
    evaluation: Recipe that evaluates the stage, if any.
    shared: Settings that other commands read, by name, as JSON values.
    config: Configuration as JSON values; a file may have any part of it.
  """

  asked: settings.Asked | None
  evaluation: str | None
  shared: dict[str, Any]
  config: dict[str, Any]

  def __post_init__(self) -> None:
    settings.require_valid(self)

  @classmethod
  def of(cls, config: Any) -> "Kept":
    """Returns the configuration to save for a `TrainConfig`, or a part of one.

    Raises:
      ConfigurationError: There is an object that the file cannot store.
    """
    stage = getattr(config, "stage", None)
    asked = getattr(stage, "asked", None)
    tree = json.loads(json.dumps(config, default=_encoded))
    evaluation = getattr(stage, "evaluation", None)
    return cls(asked, evaluation, dict(_shared(tree)), tree)

  @classmethod
  def find(cls, model_dir: epath.PathLike) -> "Kept | None":
    """Returns the configuration of a MODEL_DIR or its checkpoint, if any."""
    path = run_directory(model_dir) / FILE
    return cls.read(path) if path.exists() else None

  @classmethod
  def read(cls, path: epath.PathLike) -> "Kept":
    """Reads an untrusted file; raises `ConfigurationError` if it is invalid."""
    with epath.Path(path).open("rb") as file:
      text = file.read(_MAX_BYTES + 1)
    try:
      if len(text) > _MAX_BYTES:
        raise ConfigurationError(f"it has more than {_MAX_BYTES} bytes")
      values = json.loads(text)
      number = values.pop("version", None) if isinstance(values, dict) else None
      if number != VERSION:
        raise ConfigurationError(
          f"it has version {number!r}, and this program reads {VERSION}; use "
          "the realm_jax that made the run, or start a new run with it as "
          "INITIAL_CHECKPOINT"
        )
      return cls(**values)
    except (TypeError, ValueError, RecursionError) as error:
      raise ConfigurationError(
        f"{path} is no JSON of a configuration that this version reads: {error}"
      ) from error

  def text(self) -> str:
    """Returns the contents of the file."""
    values = {"version": VERSION, **dataclasses.asdict(self)}
    return json.dumps(values, indent=1, ensure_ascii=False) + "\n"

  def write(self, model_dir: epath.PathLike) -> None:
    """Replaces the file of a run, and logs the differences.

    Raises:
      ConfigurationError: There is a file of another version.
      OSError: The disk is full, or the directory cannot be written to.
    """
    path, before = epath.Path(model_dir) / FILE, Kept.find(model_dir)
    if before is not None and before != self:
      old, new = before.text().splitlines(), self.text().splitlines()
      changes = [line for line in difflib.ndiff(old, new) if line[0] in "-+"]
      logging.warning(
        "The configuration differs from the one in %s, which it replaces:\n%s",
        path,
        "\n".join(changes),
      )
    with atomic_text_file(path) as file:
      file.write(self.text())

  def bind(self, bindings: Bindings, *, is_whole: bool = False) -> None:
    """Binds the shared settings or, if `is_whole`, all values as defaults.

    Raises:
      ConfigurationError: A kind or a field is unknown, and in no module of the
        bindings.
    """
    modules = bindings.modules
    known = _shared_names(self.config, modules)
    bindings.names |= {
      name: _task_modules(name, _decoded(value, modules), modules)
      for name, value in self.shared.items()
      # Other commands do not need settings that a user's own stage adds.
      if name in known
    }
    if not is_whole:
      return
    root = _decoded(self.config, bindings.modules)
    if not isinstance(root, Reference):
      raise ConfigurationError("want the configuration of a run")
    bindings.root = root
