"""The recipes of an ablation, read as its commands will read them."""

import contextlib

from realm_jax import configuration
from realm_jax.stage_commands import StageCommand
from realm_jax.training.config import TrainConfig


class Recipes:
  """Reads the gin files and bindings of commands."""

  def train_config(self, command: StageCommand) -> TrainConfig:
    """Returns what a `train` command would train.

    Raises:
      ValueError: The recipe or a binding is wrong.
    """
    with _parsed(command):
      return configuration.configured(TrainConfig)()

  def require_valid(self, command: StageCommand) -> None:
    """Reads what a command would.

    Raises:
      ValueError: The recipe or a binding is wrong.
    """
    with _parsed(command):
      pass


def _parsed(
  command: StageCommand,
) -> contextlib.AbstractContextManager[None]:
  return configuration.parsed(
    command.function, command.gin_files, command.gin_bindings
  )


class StepCounts:
  """Steps of commands; reads a recipe once for the same names that are bound.

  What it binds them to, such as the paths of a seed, makes no difference.
  """

  def __init__(self, recipes: Recipes):
    self._recipes = recipes
    self._known: dict[tuple[object, ...], int | None] = {}

  def of(self, command: StageCommand) -> int | None:
    """Returns the steps of a `train` command; None for any other.

    Raises:
      ValueError: The recipe or a binding is wrong.
    """
    names = tuple(command.bindings)
    budget = command.bindings.get("NUM_STEPS")
    key = command.module, *command.gin_files, names, budget
    if key not in self._known:
      if command.module == "train":
        config = self._recipes.train_config(command)
        self._known[key] = config.num_steps
      else:
        self._recipes.require_valid(command)
        self._known[key] = None
    return self._known[key]
