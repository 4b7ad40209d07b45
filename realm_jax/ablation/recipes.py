"""What the recipes bind, as the entry point reads it."""

from typing import Protocol, runtime_checkable

from realm_jax.stage_commands.command import StageCommand
from realm_jax.training.config import TrainConfig


@runtime_checkable
class Recipes(Protocol):
  """Reads the gin files and bindings of commands."""

  def train_config(self, command: StageCommand) -> TrainConfig:
    """Returns what a `train` command would train.

    Raises:
      ValueError: The recipe or a binding is wrong.
    """
    ...

  def bound_lines(self, command: StageCommand) -> list[str]:
    """Returns what is bound for a command, in lines of one binding each.

    Raises:
      ValueError: The recipe or a binding is wrong.
    """
    ...
