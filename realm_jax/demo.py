"""Runs every stage on a generated encyclopedia: `make demo`.

Each stage runs as its command would, with that stage's recipe under
gin/experiments/demo/, and prints the command. The index builder is a second
process. Everything is kept under --output_dir.
"""

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from realm_jax import configuration
from realm_jax.corpus.building.corpus import build_corpus
from realm_jax.demo_world import edits, report, vocabulary
from realm_jax.demo_world import world as world_lib
from realm_jax.evaluation import run as evaluation
from realm_jax.partitioning import cpu_tuning
from realm_jax.stage_commands.command import StageCommand, Value
from realm_jax.stage_commands.processes import running_beside
from realm_jax.training import loop
from realm_jax.training.config import TrainConfig

_OUTPUT_DIR = flags.DEFINE_string(
  "output_dir", "out/demo", "Directory of everything that the demo writes."
)
_NUM_EDITS = 20
_BLOCK_LENGTH = 56
_RECIPES = "gin/experiments/demo"

# Figures of an evaluation, by name.
_Figures = Mapping[str, Any]


class DemoRun:
  """The commands of the demo, over one output directory.

  The extra gin files are applied after each stage's recipe.
  """

  def __init__(self, output_dir: Path, extra_gin_files: Sequence[str]):
    self._output_dir = output_dir
    self._extra_gin_files = extra_gin_files

  def path(self, name: str) -> str:
    """Returns the path of a file or folder of the demo."""
    return str(self._output_dir / name)

  def train(
    self, name: str, recipe: str, **bindings: Value
  ) -> loop.TrainResult:
    """Trains a stage in a folder of its own.

    Raises:
      ValueError: SIGTERM stopped it.
    """
    bindings = {"MODEL_DIR": self.path(name), **bindings}
    with self._parsed("train", recipe, bindings):
      config = configuration.configured(TrainConfig)()
      text = configuration.text()
    result = loop.train(config, configuration=text)
    if result.preempted:
      raise ValueError(f"stopped in stage {name}; its checkpoints are kept")
    return result

  def evaluate(self, name: str, recipe: str, **bindings: Value) -> _Figures:
    """Evaluates a stage; the outputs go to a folder of `evaluations`."""
    output_dir = self.path(f"evaluations/{name}")
    bindings = {"OUTPUT_DIR": output_dir, **bindings}
    with self._parsed("evaluate", recipe, bindings):
      return configuration.configured(evaluation.evaluate)()

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
    log = self._output_dir / name / "build_index.log"
    print(f"\n$ {command} &     # log: {log}", flush=True)
    return running_beside(command, log, wait=once)

  def build_corpus(self, folder: str, corpus: str) -> None:
    """Builds a corpus of the articles of a world."""
    articles = self.path(f"{folder}/articles.jsonl")
    corpus_dir, vocab = self.path(corpus), self.path("vocab.txt")
    print(
      f"\n$ python -m realm_jax.build_corpus --input={articles} "
      f"--output_dir={corpus_dir} --vocab={vocab} "
      f"--block_length={_BLOCK_LENGTH}",
      flush=True,
    )
    summary = build_corpus(
      [articles], corpus_dir, vocab=vocab, block_length=_BLOCK_LENGTH
    )
    print(summary.table())

  def _parsed(
    self, module: str, recipe: str, bindings: Mapping[str, Value]
  ) -> contextlib.AbstractContextManager[None]:
    """Prints a command, and sets gin's configuration as that would."""
    command = self._command(module, recipe, bindings)
    print(f"\n$ {command}", flush=True)
    return configuration.parsed(command.gin_files, command.gin_bindings)

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


def run_demo(demo: DemoRun) -> dict[str, Any]:
  """Runs every stage and control, and returns the contents of report.json."""
  start = time.monotonic()
  _announce("A fictional encyclopedia, its corpus and its wordpieces")
  world = _make_world(demo)
  _announce("Inverse cloze: the retriever learns to find a sentence's block")
  demo.train("inverse_cloze", "inverse_cloze")
  _announce("Reading: the reader learns to fill in words from a block")
  demo.train("reading", "reading")
  _announce("REALM pre-training: both learn, and the index is refreshed")
  with demo.index_builder("realm"):
    pretrained = demo.train(
      "realm",
      "pretrain",
      INITIAL_CHECKPOINT=demo.path("inverse_cloze"),
      INITIAL_READER=demo.path("reading"),
    )
  masked = demo.evaluate("masked", "eval_masked", MODEL_DIR=demo.path("realm"))
  _announce("Open QA with the REALM retriever")
  realm = _train_open_qa(demo, "open_qa", retriever="realm")
  _announce("Control: the same reader, given random blocks")
  random_blocks = _evaluate_open_qa(demo, "random_blocks", CANDIDATES="random")
  _announce("Control: the inverse-cloze retriever, without REALM pre-training")
  ict_only = _train_open_qa(demo, "ict_only", retriever="inverse_cloze")
  _announce("Control: BM25, with a reader trained on its blocks")
  bm25 = _train_on_bm25(demo)
  _announce(f"{_NUM_EDITS} facts change in the corpus; nothing is trained")
  edited = _evaluate_edited_world(demo, world)
  open_qa = {
    "realm": realm,
    "random_blocks": random_blocks,
    "bm25": bm25,
    "ict_only": ict_only,
  }
  return {
    **{
      name: {key: figures[key] for key in ("exact_match", "recall_at_5")}
      for name, figures in open_qa.items()
    },
    "masked_accuracy": {
      "with_retrieval": masked["masked_accuracy"],
      "null_only": masked["masked_accuracy_null"],
    },
    "edited_facts": {
      "followed": round(edited["exact_match"] * edited["num_questions"]),
      "total": edited["num_questions"],
    },
    "generations_swapped": pretrained.swaps,
    "wall_seconds": round(time.monotonic() - start, 1),
  }


def _make_world(demo: DemoRun) -> world_lib.World:
  """Writes the encyclopedia, its vocabulary and its corpus."""
  with configuration.parsed([f"{_RECIPES}/world.gin"], []):
    world = configuration.configured(world_lib.generate)()
  world_lib.write_world(demo.path("world"), world=world)
  vocabulary.write_vocabulary(demo.path("vocab.txt"), world)
  demo.build_corpus("world", "corpus")
  return world


def _train_open_qa(demo: DemoRun, name: str, *, retriever: str) -> _Figures:
  """Trains open QA from a stage's retriever, and evaluates it."""
  with demo.index_builder(name, once=True):
    demo.train(
      name,
      "open_qa",
      TRAIN_QUESTIONS=demo.path("world/questions-train.jsonl"),
      INITIAL_CHECKPOINT=demo.path(retriever),
      INITIAL_READER=demo.path("realm"),
    )
  return _evaluate_open_qa(demo, name, MODEL_DIR=demo.path(name))


def _train_on_bm25(demo: DemoRun) -> _Figures:
  """Trains open QA on BM25's blocks, and evaluates it.

  BM25 brings its own scores, so that the run has no towers. The generation
  that it searches needs some: those of the inverse cloze, which nothing reads.
  """
  name = "bm25"
  with demo.index_builder(
    name,
    once=True,
    recipe="build_index_bm25",
    MODEL_DIR=demo.path("realm"),
    GENERATIONS_DIR=demo.path(f"{name}/generations"),
    CHECKPOINT_STEP=0,
  ):
    demo.train(
      name,
      "open_qa",
      TRAIN_QUESTIONS=demo.path("world/questions-train.jsonl"),
      INITIAL_READER=demo.path("realm"),
      INDEX_SCORES=True,
    )
  return _evaluate_open_qa(
    demo, name, MODEL_DIR=demo.path(name), INDEX_SCORES=True
  )


def _evaluate_open_qa(demo: DemoRun, name: str, **bindings: Value) -> _Figures:
  """Evaluates open QA, by default the run with the REALM retriever."""
  defaults: dict[str, Value] = {
    "MODEL_DIR": demo.path("open_qa"),
    "QUESTIONS": demo.path("world/questions-test.jsonl"),
  }
  return demo.evaluate(name, "eval", **(defaults | bindings))


def _evaluate_edited_world(demo: DemoRun, world: world_lib.World) -> _Figures:
  """Edits facts, rebuilds corpus and index, and asks about the facts."""
  edited = edits.edit_facts(world, count=_NUM_EDITS, seed=0)
  edits.write_edited(demo.path("edited_world"), before=world, after=edited)
  demo.build_corpus("edited_world", "edited_corpus")
  corpus_dir = demo.path("edited_corpus")
  generations = demo.path("edited_generations")
  with demo.index_builder(
    "open_qa",
    once=True,
    CORPUS_DIR=corpus_dir,
    GENERATIONS_DIR=generations,
    CHECKPOINT_STEP=0,
  ):
    pass
  return _evaluate_open_qa(
    demo,
    "edited",
    CORPUS_DIR=corpus_dir,
    GENERATION=generations,
    QUESTIONS=demo.path("edited_world/questions-edited.jsonl"),
  )


def _announce(title: str) -> None:
  print(f"\n=== {title}", flush=True)


def main(argv: Sequence[str]) -> None:
  """Runs the demo and writes its report."""
  del argv
  cpu_tuning.disable_async_dispatch()
  cpu_tuning.keep_freed_memory()
  output_dir = Path(_OUTPUT_DIR.value)
  if output_dir.exists() and any(output_dir.iterdir()):
    raise ValueError(
      f"{output_dir} is not empty; remove it, or choose another --output_dir"
    )
  gin_files, bindings = configuration.given()
  if bindings:
    raise ValueError(
      f"{bindings[0]!r}: each stage of the demo has other names to bind; put "
      "bindings into a file, as in gin/experiments/demo/quick.gin, and give "
      "--gin_file"
    )
  print(report.write(output_dir, run_demo(DemoRun(output_dir, gin_files))))


if __name__ == "__main__":
  configuration.run(main)
