"""Kinds: the names by which a MODEL_DIR mentions classes.

A MODEL_DIR may be a stranger's. What it names is looked up here and nowhere
else: it is a class below, an entry point of the group `realm_jax.kinds` of an
installed package, or `MODULE:CLASS`, a dataclass of a module that the user has
named.
"""

import dataclasses
import functools
import importlib.metadata
import pkgutil
import sys
from collections.abc import Collection, Iterator

from realm_jax.configuration.bindings import ConfigurationError, Target

_CONFIG = "realm_jax.training.config"
_STAGES = "realm_jax.training.stages"
_OWN = {
  "bert": "realm_jax.models.bert:BertConfig",
  "checkpoints": f"{_CONFIG}:CheckpointConfig",
  "data": "realm_jax.inputs.config:DataConfig",
  "inverse_cloze": f"{_STAGES}.inverse_cloze:InverseCloze",
  "mesh": f"{_CONFIG}:MeshConfig",
  "open_qa": f"{_STAGES}.open_qa:OpenQa",
  "optimizer": "realm_jax.training.optimizer:OptimizerConfig",
  "pretraining": f"{_STAGES}.pretraining:Pretraining",
  "reader": "realm_jax.models.reader:Reader",
  "reading": f"{_STAGES}.reading:Reading",
  "refresh": f"{_CONFIG}:RefreshConfig",
  "retriever": "realm_jax.models.retriever:Retriever",
  "train": f"{_CONFIG}:TrainConfig",
}


@functools.cache
def _known() -> dict[str, str]:
  """Returns the place of each kind, `MODULE:CLASS`; ours are never replaced."""
  installed = importlib.metadata.entry_points(group="realm_jax.kinds")
  return {entry.name: entry.value for entry in installed} | _OWN


class NotImported(str):
  """Name of a module that a MODEL_DIR mentions, and that is not imported."""

  __slots__ = ()


def own_classes() -> Iterator[Target]:
  """Yields the classes that have kinds here."""
  yield from map(pkgutil.resolve_name, _known().values())


def dataclasses_of(*modules: str) -> Iterator[Target]:
  """Yields the dataclasses of modules that are imported."""
  for module in modules:
    for found in vars(sys.modules[module]).values():
      is_own = getattr(found, "__module__", None) == module
      if is_own and isinstance(found, type) and dataclasses.is_dataclass(found):
        yield found


def kind_of(target: Target) -> str:
  """Returns the kind of a class.

  Raises:
    ConfigurationError: No other process could find it.
  """
  place = f"{target.__module__}:{target.__qualname__}"
  known = {other: kind for kind, other in _known().items()}
  if place not in known and target not in dataclasses_of(target.__module__):
    raise ConfigurationError(
      f"{place} cannot be kept in a MODEL_DIR; make it a dataclass at the top "
      "of its module"
    )
  return known.get(place, place)


def class_of(kind: str, modules: Collection[str]) -> Target:
  """Returns the class of a kind; imports no module but those named above.

  Args:
    kind: Name of a kind.
    modules: Modules that the user has named, which are imported.

  Raises:
    ConfigurationError: It is unknown; the message says which flag to give.
  """
  if kind in _known():
    return pkgutil.resolve_name(_known()[kind])
  module, separator, name = kind.partition(":")
  advice = (
    f"it wants one of {', '.join(_known())}, or a newer version has made it"
  )
  if module in modules:
    for found in dataclasses_of(module):
      if found.__qualname__ == name:
        return found
    advice = f"{module} has no such dataclass"
  elif separator:
    advice = (
      f"nothing is imported because a MODEL_DIR names it; give "
      f"--modules={module} if you trust that module"
    )
  raise ConfigurationError(f"the kind {kind!r} is not known here: {advice}")
