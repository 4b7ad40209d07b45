"""Finds a task by name among seqio's, once its module is imported."""

import difflib
import importlib
import pkgutil
from collections.abc import Sequence

import seqio

from realm_jax.inputs.context import TaskError


def _import_tasks(module_name: str) -> None:
  """Imports a module, and where it is a package each module in it."""
  try:
    module = importlib.import_module(module_name)
  except ModuleNotFoundError as error:
    # Not where a module that does exist lacks a library of its own.
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
) -> seqio.Task:
  """The seqio task called `name`.

  Args:
    name: as given to `seqio.TaskRegistry.add`.
    task_modules: modules that add tasks when imported; of a package, all.

  Raises:
    TaskError: there is none; the message lists the near names.
  """
  for module_name in task_modules:
    _import_tasks(module_name)
  if name in seqio.TaskRegistry.names():
    return seqio.TaskRegistry.get(name)
  if name in seqio.MixtureRegistry.names():
    raise TaskError(
      f"{name!r} is a seqio mixture, which cannot be resumed at a position; "
      "train on one task, or write a task whose source holds all the data"
    )
  known = sorted(seqio.TaskRegistry.names())
  near = difflib.get_close_matches(name, known, cutoff=0.4)
  raise TaskError(
    f"no task named {name!r} in {', '.join(task_modules)}; "
    + (f"did you mean {', '.join(near)}? " if near else "")
    + f"There are {', '.join(known)}. A new task is a file in tasks/, or a "
    "module named in task_modules"
  )
