"""The commands that the demo runs, each with its recipe."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from realm_jax import configuration
from realm_jax.corpus.build import build_corpus
from realm_jax.demo_world import world
from realm_jax.evaluation import evaluate as evaluation
from realm_jax.generations import sidecar
from realm_jax.stage_commands import StageCommand, Value, running_beside
from realm_jax.text.salient_spans import find_tagger
from realm_jax.training import trainer
from realm_jax.training.config import TrainConfig
from realm_jax.training.loop import TrainResult

_RECIPES = "gin/experiments/demo"
# BLOCK_LENGTH of its model.gin.
BLOCK_LENGTH = 36
# Finds the kinds of names, too, as the paper's tagger does.
TAGGER = "realm_jax.demo_world.names.tag"

# Figures of an evaluation, by name.
Figures = Mapping[str, Any]


class DemoCommands:
  """The commands of the demo, over one output directory.

  Each is printed as a user would type it. The index builder is a process of
  its own; what trains and evaluates is called in this one, which saves the
  seconds of importing it.

  Args:
    output_dir: Directory of everything that the demo writes.
    extra_gin_files: Gin files that are applied after each stage's recipe.
  """

  def __init__(self, output_dir: Path, extra_gin_files: Sequence[str]):
    self.output_dir = output_dir
    self._extra_gin_files = extra_gin_files

  def path(self, name: str) -> str:
    """Returns the path of a file or folder of the demo."""
    return str(self.output_dir / name)

  def make_world(self) -> world.World:
    """Generates the world that world.gin and the extra files configure."""
    gin_files = [f"{_RECIPES}/world.gin", *self._extra_gin_files]
    with configuration.parsed(world.generate, gin_files):
      return configuration.configured(world.generate)()

  def train(self, name: str, recipe: str, **bindings: Value) -> TrainResult:
    """Trains a stage in a folder of its own.

    Raises:
      ValueError: SIGTERM stopped it.
    """
    bindings = {"MODEL_DIR": self.path(name), **bindings}
    with self._parsed("train", recipe, bindings):
      config = configuration.configured(TrainConfig)()
      kept = configuration.kept_files(config.stage)
    result = trainer.train(config, configuration=kept)
    if result.preempted:
      raise ValueError(f"stopped in stage {name}; its checkpoints are kept")
    return result

  def evaluate(self, name: str, recipe: str, **bindings: Value) -> Figures:
    """Evaluates a stage; the outputs go to a folder of `evaluations`."""
    output_dir = self.path(f"evaluations/{name}")
    bindings = {"OUTPUT_DIR": output_dir, **bindings}
    with self._parsed("evaluate", recipe, bindings):
      return configuration.configured(evaluation.evaluate)()

  def build_index(self, name: str, **bindings: Value) -> None:
    """Builds the generation of a stage's newest checkpoint."""
    bindings = {"MODEL_DIR": self.path(name), **bindings}
    with self._parsed("build_index", "build_index", bindings, flags=["--once"]):
      configuration.configured(sidecar.build_index)(once=True)

  def index_builder(
    self,
    name: str,
    *,
    recipe: str = "build_index",
    once: bool = False,
    **bindings: Value,
  ) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which the index builder runs as a second process.

    It follows the checkpoints of a stage until the `with` block ends. With
    `once` it builds one generation, for which the end of the block waits. If
    it fails, the training in the block is stopped by SIGTERM, and the context
    raises a ValueError.
    """
    command = self._command(
      "build_index",
      recipe,
      {"MODEL_DIR": self.path(name), **bindings},
      flags=["--once"] if once else [],
    )
    log = self.output_dir / name / "build_index.log"
    print(f"\n$ {command} &     # log: {log}", flush=True)
    return running_beside(command, log, wait=once)

  def build_corpus(self, folder: str, corpus: str) -> None:
    """Builds a corpus of the articles of a world."""
    articles = self.path(f"{folder}/articles.jsonl")
    corpus_dir, vocab = self.path(corpus), self.path("vocab.txt")
    print(
      f"\n$ python -m realm_jax.build_corpus --input={articles} "
      f"--output_dir={corpus_dir} --vocab={vocab} "
      f"--block_length={BLOCK_LENGTH} --tagger={TAGGER}",
      flush=True,
    )
    summary = build_corpus(
      [articles],
      corpus_dir,
      vocab=vocab,
      block_length=BLOCK_LENGTH,
      tagger=find_tagger(TAGGER),
    )
    print(summary.table())

  def _parsed(
    self,
    module: str,
    recipe: str,
    bindings: Mapping[str, Value],
    *,
    flags: Sequence[str] = (),
  ) -> contextlib.AbstractContextManager[None]:
    """Prints a command, and sets gin's configuration as that would."""
    command = self._command(module, recipe, bindings, flags=flags)
    print(f"\n$ {command}", flush=True)
    return configuration.parsed(
      command.function, command.gin_files, command.gin_bindings
    )

  def _command(
    self,
    module: str,
    recipe: str,
    bindings: Mapping[str, Value],
    *,
    flags: Sequence[str] = (),
  ) -> StageCommand:
    gin_files = [f"{_RECIPES}/{recipe}.gin", *self._extra_gin_files]
    bindings = {"CORPUS_DIR": self.path("corpus"), **bindings}
    return StageCommand(module, gin_files, bindings, flags)
