"""The recipes of an ablation, read as its commands will read them."""

import contextlib

from realm_jax import configuration
from realm_jax.stage_commands import StageCommand
from realm_jax.training.config import TrainConfig


class GinRecipes:
  """Reads what commands bind with gin."""

  def train_config(self, command: StageCommand) -> TrainConfig:
    """Returns what a `train` command would train."""
    with _parsed(command):
      return configuration.configured(TrainConfig)()

  def require_valid(self, command: StageCommand) -> None:
    """Reads what a command would."""
    with _parsed(command):
      pass


def _parsed(
  command: StageCommand,
) -> contextlib.AbstractContextManager[None]:
  return configuration.parsed(
    command.function, command.gin_files, command.gin_bindings
  )
