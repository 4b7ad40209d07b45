"""gin's configuration, which is global, for the length of a `with` block.

gin has no public way to set its state aside, so that this file, and
`realm_jax/configuration/parsing.py`, which lists bindings, know its variables.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import IO, Any

from etils import epath

import gin

# What gin keeps of the files and bindings that it has read.
_STATE = (
  "_CONFIG",
  "_IMPORTS",
  "_OPERATIVE_CONFIG",
  "_SINGLETONS",
  "_FILE_READERS",
  "_LOCATION_PREFIXES",
)
# Of these, what a new configuration begins without.
_CLEARED = _STATE[:4]
# A recipe of this folder holds defaults.
_DEFAULTS = ("gin", "runs")


@contextlib.contextmanager
def own_configuration() -> Iterator[None]:
  """Gives the `with` block an empty configuration, and restores the caller's.

  Classes and functions that gin files have named stay registered with gin,
  which binds nothing.
  """
  kept = {name: _copy(getattr(gin.config, name)) for name in _STATE}
  was_locked = gin.config_is_locked()
  gin.config._set_config_is_locked(False)
  for name in _CLEARED:
    getattr(gin.config, name).clear()
  try:
    yield
  finally:
    for name, value in kept.items():
      # In place, because gin's functions refer to these very objects.
      current = getattr(gin.config, name)
      current.clear()
      if isinstance(value, list):
        current.extend(value)
      else:
        current.update(value)
    gin.config._set_config_is_locked(was_locked)


def _copy(value: Any) -> Any:
  """Copies a variable of gin's, with the bindings of each configurable."""
  if isinstance(value, dict):
    return {k: dict(v) if isinstance(v, dict) else v for k, v in value.items()}
  return value.copy()


def read_files_as(*, defaults: bool) -> None:
  """Makes gin read local files, and those of object stores.

  With `defaults`, files of gin/runs bind only what nothing before them has
  bound, however they are included.
  """
  depth = 0

  @contextlib.contextmanager
  def opened(path: str) -> Iterator[IO[str]]:
    nonlocal depth
    is_default = defaults and _is_default(path)
    before = {}
    if is_default:
      before = {k: dict(v) for k, v in gin.config._CONFIG.items()}
      depth += 1
    with _located(path).open("r") as file:
      yield file
    if is_default:
      depth -= 1
      # Among themselves, these files override one another as everywhere.
      if depth == 0:
        for key, bindings in before.items():
          gin.config._CONFIG[key].update(bindings)

  # The only reader: gin's own look for each file in Python packages, too, and
  # log an error for each folder in which there is none.
  readers: list[Any] = gin.config._FILE_READERS
  readers[:] = [(opened, lambda path: _located(path).is_file())]


def _located(path: str) -> epath.Path:
  """Returns a path to which gin has prefixed a folder that it searches."""
  start = path.find("gs://")
  return epath.Path(path[max(start, 0) :])


def _is_default(path: str) -> bool:
  folder = os.path.dirname(os.path.realpath(path))
  return tuple(folder.split(os.sep)[-2:]) == _DEFAULTS
