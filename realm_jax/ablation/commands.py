"""The commands of a seed's runs, from the recipes of their stages."""

from collections.abc import Sequence
from pathlib import Path

from realm_jax.ablation.config import AblationConfig
from realm_jax.ablation.data import SeedFiles
from realm_jax.stage_commands import StageCommand, Value


class Commands:
  """Makes the commands of one seed, whose runs are folders of `folder`."""

  def __init__(self, config: AblationConfig, folder: Path, seed: int):
    self._config, self.folder, self.seed = config, folder, seed
    self.data: SeedFiles = config.data.files(folder, seed)
    self.reads_retrieved = config.reads_retrieved

  @property
  def initial_checkpoint(self) -> str | None:
    """Checkpoint that the first stages start from, if any."""
    path = self._config.initial_checkpoint
    return None if path is None else str(path)

  def path(self, name: str) -> str:
    """Returns the folder of a run."""
    return str(self.folder / name)

  def train(self, stage: str, name: str, **bindings: Value) -> StageCommand:
    """Returns the command that trains a stage in a run's folder."""
    budget: dict[str, Value] = {}
    if stage in self._config.num_steps:
      budget["NUM_STEPS"] = self._config.num_steps[stage]
    return StageCommand(
      "train",
      self._config.gin_files(stage),
      {
        "MODEL_DIR": self.path(name),
        "CORPUS_DIR": self.data.corpus_dir,
        "SEED": self.seed,
        **budget,
        **bindings,
      },
    )

  def sidecar(
    self, name: str, *, flags: Sequence[str] = (), **bindings: Value
  ) -> StageCommand:
    """Returns the command that builds a run's index."""
    return StageCommand(
      "build_index",
      self._config.gin_files("build_index"),
      {
        "MODEL_DIR": self.path(name),
        "CORPUS_DIR": self.data.corpus_dir,
        **bindings,
      },
      flags,
    )

  def evaluate(
    self, recipe: str, name: str, *, model: str, **bindings: Value
  ) -> StageCommand:
    """Returns the command that evaluates the run `model`."""
    return StageCommand(
      "evaluate",
      self._config.gin_files(recipe),
      {
        "MODEL_DIR": self.path(model),
        "CORPUS_DIR": self.data.corpus_dir,
        "OUTPUT_DIR": self.path(name),
        **bindings,
      },
    )
