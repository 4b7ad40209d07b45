"""The stages, each from what the one before has trained, and evaluations."""

from pathlib import Path
from typing import Any

from realm_jax.evaluation import evaluate as evaluation_run
from realm_jax.evaluation.outputs import Figures
from realm_jax.training.loop import TrainResult
from tests.integration.commands import Commands

STAGES = ("inverse_cloze", "pretrain", "open_qa")
# Inverse cloze is trained by several processes where it is preempted.
OF_SEVERAL_PROCESSES = ("pretrain", "open_qa")
# Each evaluation, and the stage whose model it is for.
EVALUATIONS = {
  "eval": "open_qa",
  "eval_retrieval": "inverse_cloze",
  "eval_masked": "pretrain",
}
_BEFORE = {"pretrain": "inverse_cloze", "open_qa": "pretrain"}


def train(
  commands: Commands, stage: str, folder: Path, before: Path, **bindings: Any
) -> TrainResult:
  """Trains a stage into a folder, from what another folder has trained.

  Its generation, if it needs one, has to be built meanwhile.
  """
  settings = {"SAVE_EVERY_STEPS": bindings["NUM_STEPS"] // 2, **bindings}
  if stage in _BEFORE:
    settings["INITIAL_CHECKPOINT"] = before / _BEFORE[stage]
  if stage == "pretrain":
    # A mask follows from its sequence, in whichever row and on whatever device.
    settings["bert.BertConfig.dropout_rate"] = 0.1
    # Only the first generation is made.
    settings["LAG_STEPS"] = bindings["NUM_STEPS"]
  return commands.train(stage, folder / stage, **settings)


def evaluate(
  commands: Commands, recipe: str, trained: Path, output_dir: Path
) -> Figures:
  """Evaluates a stage that was trained into a folder."""
  settings: dict[str, Any] = {"MODEL_DIR": trained / EVALUATIONS[recipe]}
  if recipe == "eval_retrieval":
    # Inverse cloze builds no generation; that of pre-training is its own.
    settings["GENERATION"] = trained / "pretrain" / "generations"
  if recipe == "eval_masked":
    settings |= {"NUM_CANDIDATES": 4, "NUM_BATCHES": 2}
  else:
    settings |= {"QUESTIONS": commands.world.question_file, "NUM_SEARCHED": 20}
  if recipe == "eval":
    settings["NUM_READ"] = 3
  return commands.call(
    evaluation_run.evaluate,
    recipe,
    OUTPUT_DIR=output_dir,
    BATCH_SIZE=8,
    **settings,
  )
