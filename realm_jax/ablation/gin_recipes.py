"""The recipes of an ablation, read as its commands will read them."""

from realm_jax import configuration
from realm_jax.evaluation import run as evaluation
from realm_jax.generations.building import run as building
from realm_jax.stage_commands.command import StageCommand
from realm_jax.training.config import TrainConfig

_CONFIGURED = {
  "train": TrainConfig,
  "evaluate": evaluation.evaluate,
  "build_index": building.build_index,
}


class GinRecipes:
  """Reads what commands bind with gin."""

  def train_config(self, command: StageCommand) -> TrainConfig:
    """Returns what a `train` command would train."""
    with configuration.parsed(command.gin_files, command.gin_bindings):
      return configuration.configured(TrainConfig)()

  def bound_lines(self, command: StageCommand) -> list[str]:
    """Returns what is bound for a command, in lines of one binding each."""
    with configuration.parsed(command.gin_files, command.gin_bindings):
      configuration.configured(_CONFIGURED[command.module])
      return configuration.bound_lines()
