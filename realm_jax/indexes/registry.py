"""Kinds of index by the name that a manifest stores."""

import dataclasses
import importlib
from collections.abc import Mapping

from realm_jax.indexes.protocol import (
  HOST_SETTING,
  IndexConfig,
  IndexLoadError,
)
from realm_jax.storage.json_files import JsonValue

# Modules and classes. A module needs a library of its own, so it is imported
# only when used.
CONFIGS = {
  "exact": ("realm_jax.indexes.exact", "ExactConfig"),
  "scann": ("realm_jax.indexes.scann.config", "ScannConfig"),
  "faiss": ("realm_jax.indexes.faiss", "FaissConfig"),
  "bm25": ("realm_jax.indexes.bm25", "Bm25Config"),
  "random": ("realm_jax.indexes.random", "RandomConfig"),
}


def config_from(kind: str, parameters: Mapping[str, JsonValue]) -> IndexConfig:
  """Returns the settings that a manifest stores.

  Raises:
    IndexLoadError: There is no such kind, or it has no such parameter.
  """
  if kind not in CONFIGS:
    raise IndexLoadError(
      f"no index is called {kind!r}; want one of {', '.join(CONFIGS)}"
    )
  module, name = CONFIGS[kind]
  config = getattr(importlib.import_module(module), name)
  known = {field.name for field in dataclasses.fields(config)}
  if unknown := sorted(set(parameters) - known):
    raise IndexLoadError(
      f"index {kind!r} has no parameter {', '.join(unknown)}; it has "
      f"{', '.join(sorted(known))}"
    )
  return config(**parameters)


def parameters_of(config: IndexConfig) -> dict[str, JsonValue]:
  """Returns the settings that a manifest stores: all but the host's."""
  return {
    field.name: getattr(config, field.name)
    for field in dataclasses.fields(config)  # type: ignore[arg-type]
    if not field.metadata.keys() & HOST_SETTING.keys()
  }
