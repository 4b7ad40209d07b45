"""The stages of training, each from what the one before has trained."""

from pathlib import Path
from typing import Any

from realm_jax.training import loop
from tests.integration.commands import Commands

STAGES = ("inverse_cloze", "reading", "pretrain", "open_qa")
WITHOUT_INDEX = ("inverse_cloze", "reading")
_BEFORE = {"pretrain": "inverse_cloze", "open_qa": "pretrain"}


def train(
  commands: Commands, stage: str, folder: Path, before: Path, **bindings: Any
) -> loop.TrainResult:
  """Trains a stage into a folder, from what another folder has trained.

  Its generation, if it needs one, has to be built meanwhile.
  """
  settings = {"SAVE_EVERY_STEPS": bindings["NUM_STEPS"] // 2, **bindings}
  if stage in _BEFORE:
    settings["INITIAL_CHECKPOINT"] = before / _BEFORE[stage]
  if stage == "pretrain":
    settings["INITIAL_READER"] = before / "reading"
    # Only the first generation is made.
    settings["LAG_STEPS"] = bindings["NUM_STEPS"]
  return commands.train(stage, folder / stage, **settings)
