"""What the commands call, in this process, as their gin files bind it."""

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness.jobs import as_gin
from realm_jax import configuration
from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.evaluation.evaluate import evaluate, follow
from realm_jax.evaluation.explain import block_use
from realm_jax.evaluation.outputs import Metrics
from realm_jax.evaluation.run import RunConfig
from realm_jax.snapshots.index_builder import build_index
from realm_jax.training import trainer
from realm_jax.training.config import TrainConfig
from realm_jax.training.loop import TrainResult
from realm_jax.training.metric_rows import read_rows
from tests import tiny_world

# The gin file of the tiny world's model and lengths.
MODEL_FILE = "tests/integration/tiny.gin"
# Each evaluation, and the stage whose model it is for.
EVALUATIONS = {"eval": "open_qa", "eval_masked": "pretrain"}
_BEFORE = {"pretrain": "inverse_cloze", "open_qa": "pretrain"}
_PATIENCE_SECONDS, _POLL_SECONDS = 300.0, 0.1
# What commands configure by each recipe of gin/runs.
FUNCTIONS = {
  **dict.fromkeys(
    (
      *("inverse_cloze", "reading", "pretrain"),
      *("open_qa", "text_to_text", "two_hop_qa", "graph_qa", "served_reader"),
    ),
    TrainConfig,
  ),
  **dict.fromkeys(("eval", "eval_retrieval", "eval_masked"), follow),
  "build_index": build_index,
  "ask": RunConfig,
  "explain": block_use,
}


def parsed(
  function: Any, gin_files: Sequence[str], bindings: Mapping[str, Any]
) -> configuration.Bindings:
  """Returns what gin files and bindings bind."""
  given = [f"{name} = {as_gin(value)}" for name, value in bindings.items()]
  return configuration.parsed(function, gin_files, given)


def losses(model_dir: Any) -> list[float]:
  """Returns the loss of each step of a run."""
  return [row["loss"] for row in read_rows(model_dir)]


def checkpoint_steps(model_dir: Any) -> list[int]:
  """Returns the steps of a run's checkpoints."""
  with contextlib.closing(CheckpointStore(model_dir)) as store:
    return store.steps()


def call(function: Any, gin_files: Sequence[str], **bindings: Any) -> Any:
  """Calls a function as gin files and bindings configure it."""
  return parsed(function, gin_files, bindings).build(function)


class Commands:
  """The commands over the recipes of gin/runs/, in the tiny world.

  Args:
    world: whose corpus and questions are used.
    model: Gin file of the model and its lengths.
  """

  def __init__(self, world: tiny_world.World, model: str = MODEL_FILE):
    self.world, self._model = world, model

  def call(self, function: Any, recipe: str, **bindings: Any) -> Any:
    """Calls a function as gin/runs/RECIPE.gin binds it."""
    files = [f"gin/runs/{recipe}.gin", self._model]
    bindings = {"CORPUS_DIR": self.world.corpus_dir, **bindings}
    return call(function, files, **bindings)

  def train(self, recipe: str, model_dir: Path, **bindings: Any) -> TrainResult:
    """Trains a stage: `realm_jax.train`."""
    settings = {"BATCH_SIZE": 8, "LEARNING_RATE": 1e-3, "WARMUP_STEPS": 2}
    if recipe == "open_qa":
      settings["TRAIN_QUESTIONS"] = self.world.question_file
      settings["NUM_READ"] = 3
    if recipe == "pretrain":
      settings["NUM_CANDIDATES"] = 4
    if recipe not in ("inverse_cloze", "reading"):
      # A builder that failed must not be waited for all day.
      settings["TIMEOUT_SECONDS"] = _PATIENCE_SECONDS
    settings |= bindings
    settings["MODEL_DIR"] = model_dir
    return trainer.train(self.call(TrainConfig, recipe, **settings))

  def train_stage(
    self, stage: str, folder: Path, before: Path, **bindings: Any
  ) -> TrainResult:
    """Trains a stage into a folder, from what another folder has trained.

    Its snapshot, if it needs one, has to be built meanwhile.
    """
    settings = {"SAVE_EVERY_STEPS": 4, **bindings}
    if stage in _BEFORE:
      settings["INITIAL_CHECKPOINT"] = before / _BEFORE[stage]
    if stage == "pretrain":
      # A mask follows from its sequence, in any row and on any device.
      settings["bert.BertConfig.dropout_rate"] = 0.1
      # Only the first snapshot is made.
      settings["LAG_STEPS"] = 8
    return self.train(stage, folder / stage, **settings)

  def evaluate(self, recipe: str, trained: Path, output_dir: Path) -> Metrics:
    """Evaluates a stage that was trained into a folder."""
    settings: dict[str, Any] = {"NUM_CANDIDATES": 4, "NUM_BATCHES": 2}
    if recipe == "eval":
      questions = self.world.question_file
      settings = {"QUESTIONS": questions, "NUM_SEARCHED": 20, "NUM_READ": 3}
    return self.call(
      evaluate,
      recipe,
      MODEL_DIR=trained / EVALUATIONS[recipe],
      OUTPUT_DIR=output_dir,
      BATCH_SIZE=8,
      **settings,
    )

  @contextlib.contextmanager
  def index_builder(self, model_dir: Path, **settings: Any) -> Iterator[None]:
    """Makes the first snapshot beside the block, as soon as it can."""
    is_over = threading.Event()

    def build() -> list[int] | None:
      while not (model_dir / "checkpoints" / "0").exists():
        if is_over.wait(_POLL_SECONDS):
          return None
      return self.world.build_snapshot(model_dir, **settings)

    with ThreadPoolExecutor(1) as thread:
      making = thread.submit(build)
      try:
        yield
        assert making.result(_PATIENCE_SECONDS) == [0]
      finally:
        is_over.set()
