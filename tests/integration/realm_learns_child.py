"""Trains the demo's stages in a small world, and prints what they reach.

    python -m tests.integration.realm_learns_child FOLDER SEED [NAME=VALUE …]

A process of its own, with one device and XLA's optimizations, which learn in
seconds what the tests' quick compilations learn in minutes. Bindings are those
of pre-training.
"""

import ast
import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.runs.jobs import Macro
from realm_jax import configuration
from realm_jax.corpus.build import build_corpus
from realm_jax.demo_world import world
from realm_jax.evaluation import evaluate as evaluation
from realm_jax.generations import sidecar
from realm_jax.generations.build import GenerationConfig
from realm_jax.generations.sidecar import SidecarConfig
from realm_jax.indexes.exact import ExactConfig
from realm_jax.partitioning import cpu_tuning
from realm_jax.text.salient_spans import find_tagger
from realm_jax.training import trainer
from realm_jax.training.config import TrainConfig
from tests.integration.commands import call, parsed

_BLOCK_LENGTH = 36
_KEPT = 1000


def _recipe(name: str) -> list[str]:
  return [f"gin/experiments/demo/{name}.gin"]


class _World:
  """A generated world, and the demo's commands over it."""

  def __init__(self, folder: Path, seed: int):
    self._folder = folder
    self._seed = seed
    made = world.generate(
      world.WorldConfig(
        seed=seed, num_people=30, num_cities=30, num_companies=12
      )
    )
    world.write_world(folder / "world", world=made)
    world.write_vocabulary(folder / "vocab.txt", made)
    build_corpus(
      [str(folder / "world" / "articles.jsonl")],
      folder / "corpus",
      vocab=str(folder / "vocab.txt"),
      block_length=_BLOCK_LENGTH,
      tagger=find_tagger("realm_jax.demo_world.names.tag"),
    )

  def train(
    self, name: str, recipe: str, *, refreshes: bool = False, **bindings: Any
  ) -> Path:
    """Trains a stage, with an index builder if any; returns its folder."""
    model_dir = self._folder / name
    given = self._given(
      MODEL_DIR=model_dir,
      SEED=self._seed,
      # Each shape is compiled.
      MAX_SHAPE_BUCKETS=1,
      **bindings,
    )
    with parsed(TrainConfig, _recipe(recipe), given):
      config = configuration.configured(TrainConfig)()
      kept = configuration.kept_files(config.stage)
    with self._builder(config) if refreshes else contextlib.nullcontext():
      trainer.train(config, configuration=kept)
    return model_dir

  @contextlib.contextmanager
  def _builder(self, config: TrainConfig) -> Iterator[None]:
    """Builds every generation beside the block, in a thread."""
    stop = threading.Event()
    with ThreadPoolExecutor(1) as thread:
      building = thread.submit(
        sidecar.build_index,
        model_dir=config.model_dir,
        corpus_dir=config.data.corpus_dir,
        generation=GenerationConfig(
          config.retriever,
          ExactConfig(),
          # Each length is compiled.
          num_lengths=1,
          query_length=config.data.query_length,
        ),
        # Each is used from a fixed step, however busy the machine is.
        sidecar=SidecarConfig(
          mode="every", keep_generations=_KEPT, poll_seconds=0.1
        ),
        stop=stop,
      )
      try:
        yield
      finally:
        stop.set()
      building.result()

  def recall(self, model_dir: Path) -> float:
    """Returns recall@5 of statements, over vectors of the last checkpoint."""
    self._build(self._given(MODEL_DIR=model_dir))
    figures = self._evaluate(
      "eval_retrieval",
      model_dir,
      QUESTIONS=self._folder / "world" / "statements-test.jsonl",
    )
    return figures["recall_at_5"]

  def _build(self, given: dict[str, Any]) -> None:
    build = sidecar.build_index
    given = {"NUM_LENGTHS": 1, **given}
    with parsed(build, _recipe("build_index"), given):
      configuration.configured(build)(once=True)

  def masked_accuracy(self, model_dir: Path, index: str) -> float:
    """Returns the share of masked words that are filled in correctly."""
    generations_dir = model_dir / f"{index}_generations"
    given = self._given(
      MODEL_DIR=model_dir, GENERATIONS_DIR=generations_dir, INDEX=Macro(index)
    )
    self._build(given)
    figures = self._evaluate(
      "eval_masked", model_dir, GENERATION=generations_dir
    )
    return figures["masked_accuracy"]

  def _evaluate(self, recipe: str, model_dir: Path, **bindings: Any) -> Any:
    return call(
      evaluation.evaluate,
      _recipe(recipe),
      **self._given(
        MODEL_DIR=model_dir, OUTPUT_DIR=model_dir / recipe, **bindings
      ),
    )

  def _given(self, **bindings: Any) -> dict[str, Any]:
    return {"CORPUS_DIR": self._folder / "corpus", **bindings}


def main(argv: list[str]) -> None:
  """Trains all stages; the last line printed has the figures as JSON."""
  folder, seed = Path(argv[1]), int(argv[2])
  bindings = dict(one.split("=", 1) for one in argv[3:])
  changed = {name: ast.literal_eval(text) for name, text in bindings.items()}
  cpu_tuning.disable_async_dispatch()
  small = _World(folder, seed)
  ict = small.train(
    "inverse_cloze",
    "inverse_cloze",
    NUM_STEPS=40,
    WARMUP_STEPS=10,
    SAVE_EVERY_STEPS=40,
    BATCH_SIZE=64,
  )
  figures = {"inverse_cloze": small.recall(ict)}
  reading = small.train(
    "reading",
    "reading",
    NUM_STEPS=150,
    WARMUP_STEPS=40,
    SAVE_EVERY_STEPS=150,
  )
  realm = small.train(
    "realm",
    "pretrain",
    refreshes=True,
    INITIAL_CHECKPOINT=ict,
    INITIAL_READER=reading,
    KEEP_CHECKPOINTS=_KEPT,
    **{
      "NUM_STEPS": 150,
      "BATCH_SIZE": 32,
      "NUM_CANDIDATES": 6,
      "LEARNING_RATE": 1e-3,
      "WARMUP_STEPS": 20,
      "SAVE_EVERY_STEPS": 25,
      "LAG_STEPS": 25,
      "WAIT_FOR_GENERATIONS": True,
      "TIMEOUT_SECONDS": 600.0,
      **changed,
    },
  )
  figures["realm"] = small.recall(realm)
  for index in ("EXACT", "RANDOM"):
    figures[index] = small.masked_accuracy(realm, index)
  print(json.dumps(figures))


if __name__ == "__main__":
  main(sys.argv)
