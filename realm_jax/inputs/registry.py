"""Looks up seqio tasks and mixtures by name, after importing their modules."""

import difflib
import importlib
import pkgutil
from collections.abc import Sequence

import seqio

from realm_jax.inputs.context import TaskError


def _import_tasks(module_name: str) -> None:
  """Imports a module, and each module in it if it is a package."""
  try:
    module = importlib.import_module(module_name)
  except ModuleNotFoundError as error:
    # Not if a module that exists lacks a library of its own.
    if f"{module_name}.".startswith(f"{error.name}."):
      raise TaskError(
        f"no module {module_name!r} to find tasks in; is its folder on "
        "PYTHONPATH?"
      ) from error
    raise
  for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
    importlib.import_module(f"{module_name}.{found.name}")


def find_task(
  name: str, task_modules: Sequence[str] = ("tasks",)
) -> seqio.Task | seqio.Mixture:
  """Returns a seqio task or mixture, once the modules are imported.

  Raises:
    TaskError: There is no such task; the message lists similar names.
  """
  for module_name in task_modules:
    _import_tasks(module_name)
  known = sorted({*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()})
  if name in known:
    return seqio.get_mixture_or_task(name)
  near = difflib.get_close_matches(name, known, cutoff=0.4)
  raise TaskError(
    f"no task named {name!r} in {', '.join(task_modules)}; "
    + (f"did you mean {', '.join(near)}? " if near else "")
    + f"There are {', '.join(known)}. A new task is a file in tasks/, or a "
    "module named in task_modules"
  )
