"""A command of a stage, as a user would type it and as a process takes it."""

import dataclasses
import json
import pkgutil
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# A value that a gin macro is bound to.
Value = str | int | float | bool | None

# What the entry points of stages configure. They import it late.
_FUNCTIONS = {
  "train": "realm_jax.training.config:TrainConfig",
  "evaluate": "realm_jax.evaluation.run:evaluate",
  "evaluate --follow": "realm_jax.evaluation.following:follow",
  "build_index": "realm_jax.generations.building.run:build_index",
}


def function_of(module: str, flags: Sequence[str] = ()) -> Callable[..., Any]:
  """Returns what `python -m realm_jax.MODULE` with flags configures."""
  follows = " --follow" if "--follow" in flags else ""
  return pkgutil.resolve_name(_FUNCTIONS[module + follows])


@dataclasses.dataclass(frozen=True)
class StageCommand:
  """`python -m realm_jax.MODULE` with gin files and bindings.

  Directories are bindings, too, and not `--model_dir`: that would add what the
  run has recorded, so that runs of different stages would be evaluated by
  different settings.

  Attributes:
    module: Name of the entry point, such as `train`.
    gin_files: Gin files; later ones override earlier ones.
    bindings: Values by macro, which override all files.
    flags: Further flags.
  """

  module: str
  gin_files: Sequence[str]
  bindings: Mapping[str, Value]
  flags: Sequence[str] = ()

  @property
  def gin_values(self) -> dict[str, str]:
    """The bindings' values as gin reads them."""
    return {
      name: json.dumps(value) if isinstance(value, str) else repr(value)
      for name, value in self.bindings.items()
    }

  @property
  def gin_bindings(self) -> list[str]:
    """The bindings as lines of a gin file."""
    return [f"{name} = {value}" for name, value in self.gin_values.items()]

  @property
  def function(self) -> Callable[..., Any]:
    """The class or function that gin configures, for which it is imported."""
    return function_of(self.module, self.flags)

  @property
  def arguments(self) -> list[str]:
    """Arguments of the Python interpreter."""
    bindings = self.gin_values.items()
    return [
      *("-m", f"realm_jax.{self.module}", *self.flags),
      *(f"--gin_file={file}" for file in self.gin_files),
      *(f"--gin.{name}={value}" for name, value in bindings),
    ]

  @property
  def argv(self) -> list[str]:
    """Command line of a process with this interpreter."""
    return [sys.executable, *self.arguments]

  def __str__(self) -> str:
    return shlex.join(["python", *self.arguments])
