"""Kinds of index by the name that a manifest gives them."""

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

from realm_jax.indexes.protocol import OF_HOST, IndexConfig

# Modules are imported when asked for: each needs a library of its own.
_CONFIGS = {
  "exact": ("realm_jax.indexes.exact", "ExactConfig"),
  "scann": ("realm_jax.indexes.scann.config", "ScannConfig"),
  "faiss": ("realm_jax.indexes.faiss", "FaissConfig"),
  "bm25": ("realm_jax.indexes.bm25", "Bm25Config"),
  "random": ("realm_jax.indexes.random", "RandomConfig"),
}


class IndexKindError(ValueError):
  """A kind of index, or a parameter of one, that does not exist."""


def kinds() -> tuple[str, ...]:
  """The names of all kinds."""
  return tuple(_CONFIGS)


def config_from(kind: str, parameters: Mapping[str, Any]) -> IndexConfig:
  """The settings that a manifest holds.

  Raises:
    IndexKindError: no such kind, or it has no such parameter.
  """
  if kind not in _CONFIGS:
    raise IndexKindError(
      f"no index is called {kind!r}; want one of {', '.join(_CONFIGS)}"
    )
  module, name = _CONFIGS[kind]
  config = getattr(importlib.import_module(module), name)
  known = {field.name for field in dataclasses.fields(config)}
  if unknown := sorted(set(parameters) - known):
    raise IndexKindError(
      f"index {kind!r} has no parameter {', '.join(unknown)}; it has "
      f"{', '.join(sorted(known))}"
    )
  return config(**parameters)


def parameters_of(
  config: IndexConfig, *, of_host: bool = False
) -> dict[str, Any]:
  """The settings as plain values.

  Args:
    config: the settings.
    of_host: whether those of the host are among them: not for a manifest.
  """
  return {
    field.name: getattr(config, field.name)
    for field in dataclasses.fields(config)  # type: ignore[arg-type]
    if of_host or not field.metadata.keys() & OF_HOST.keys()
  }
