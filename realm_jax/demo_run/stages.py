"""The stages and controls of the demo, in their order."""

import contextlib
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from realm_jax import configuration
from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.manifest import MANIFEST_NAME
from realm_jax.demo_world import edits
from realm_jax.demo_world import world as world_lib
from realm_jax.evaluation.outputs import PREDICTIONS
from realm_jax.generations.store import GenerationStore
from realm_jax.pipeline import Command, Step, Value, call, run
from realm_jax.text.salient_spans import find_tagger
from realm_jax.training.metric_rows import read_rows

_RECIPES = "gin/experiments/demo"
# BLOCK_LENGTH of its model.gin.
_BLOCK_LENGTH = 36
# Finds the kinds of names, too, as the paper's tagger does.
_TAGGER = "realm_jax.demo_world.names.tag"
_NUM_EDITS = 100
# Checkpoints of the continued inverse cloze, for its curve.
_NUM_SAVES = 4
_ALL = 1000
# Points of each curve of recall along training.
_MAX_POINTS = 6
_RECALLS = ("recall_at_1", "recall_at_5", "mrr")

ICT, ICT_CONTINUED = "inverse_cloze", "inverse_cloze_continued"
REALM = "realm"
STATEMENTS = "statements-test"

# Figures of an evaluation, by name.
Figures = Mapping[str, Any]


class Demo:
  """The commands of the demo, each with its recipe, over one directory.

  Args:
    output_dir: Directory of everything that the demo writes.
    extra_gin_files: Gin files that are applied after each stage's recipe.
  """

  def __init__(self, output_dir: Path, extra_gin_files: Sequence[str]):
    self.output_dir, self._extra_gin_files = output_dir, extra_gin_files

  def path(self, name: str) -> str:
    """Returns the path of a file or folder of the demo."""
    return str(self.output_dir / name)

  def make_world(self) -> world_lib.World:
    """Generates the world that world.gin and the extra files configure."""
    gin_files = [f"{_RECIPES}/world.gin", *self._extra_gin_files]
    with configuration.parsed(world_lib.generate, gin_files):
      return configuration.configured(world_lib.generate)()

  def train(
    self,
    name: str,
    recipe: str,
    bindings: Mapping[str, Value],
    sidecar: Command | None = None,
  ) -> None:
    """Trains a stage in a folder of its own, with its index builder if any."""
    command = self.command(
      "train", recipe, {**self.directories(name), **bindings}
    )
    run(Step(command, self.output_dir / name, sidecar))

  def evaluate(
    self, name: str, recipe: str, of: str, bindings: Mapping[str, Value]
  ) -> Figures:
    """Evaluates the stage `of`; the outputs go to a folder of `evaluations`."""
    folder = self.output_dir / "evaluations" / name
    own = {**self.directories(of), "OUTPUT_DIR": str(folder)}
    step = Step(self.command("evaluate", recipe, {**own, **bindings}), folder)
    run(step)
    return step.figures()

  def build_index(
    self, name: str, step: int, bindings: Mapping[str, Value]
  ) -> None:
    """Builds the generation of a stage's checkpoint, unless it is there."""
    folder = bindings.get("GENERATIONS_DIR", self.path(f"{name}/generations"))
    if step not in GenerationStore(str(folder)).steps():
      call(self.index_builder(name, {"CHECKPOINT_STEP": step, **bindings}))

  def index_builder(
    self, name: str, bindings: Mapping[str, Value] | None = None
  ) -> Command:
    """Returns the command that builds one generation of a stage."""
    bindings = {**self.directories(name), **(bindings or {})}
    return self.command("build_index", "build_index", bindings, ("--once",))

  def build_corpus(self, folder: str, corpus: str) -> None:
    """Builds a corpus of the articles of a world, unless it is there."""
    if (self.output_dir / corpus / MANIFEST_NAME).exists():
      return
    articles, vocab = (
      self.path(f"{folder}/articles.jsonl"),
      self.path("vocab.txt"),
    )
    print(
      f"\n$ python -m realm_jax.build_corpus --input={articles} "
      f"--output_dir={self.path(corpus)} --vocab={vocab} "
      f"--block_length={_BLOCK_LENGTH} --tagger={_TAGGER}",
      flush=True,
    )
    summary = build_corpus(
      [articles],
      self.path(corpus),
      vocab=vocab,
      block_length=_BLOCK_LENGTH,
      tagger=find_tagger(_TAGGER),
    )
    print(summary.table())

  def correct(self, name: str) -> dict[str, bool]:
    """Returns which questions an evaluation has answered rightly, by id."""
    path = self.output_dir / "evaluations" / name / PREDICTIONS
    predictions = map(json.loads, path.read_text().splitlines())
    return {one["id"]: one["correct"] for one in predictions}

  def steps(self, name: str) -> list[int]:
    """Returns the steps of a stage's checkpoints, in order."""
    with contextlib.closing(CheckpointStore(self.path(name))) as store:
      return sorted(store.steps())

  def rows(self, name: str) -> list[dict[str, Any]]:
    """Returns the metrics of each step of a stage."""
    return read_rows(self.output_dir / name)

  def command(
    self,
    module: str,
    recipe: str,
    bindings: Mapping[str, Value],
    flags: Sequence[str] = (),
  ) -> Command:
    """Returns a command with a recipe of the demo."""
    gin_files = [f"{_RECIPES}/{recipe}.gin", *self._extra_gin_files]
    return Command(module, gin_files, bindings, flags)

  def directories(self, name: str) -> dict[str, Value]:
    """Returns the bindings that name a stage's run and the corpus."""
    return {"MODEL_DIR": self.path(name), "CORPUS_DIR": self.path("corpus")}


def run_demo(demo: Demo) -> dict[str, Any]:
  """Runs every stage and control, and returns the contents of report.json.

  The inverse-cloze retriever that REALM is compared with is the better, on the
  validation questions, of the one that REALM starts from and of the same,
  trained on for as many seconds as REALM's pre-training took. What stands is
  not made again.

  Raises:
    StoppedError: SIGTERM came; the same call continues.
    ValueError: A recipe is wrong, or a command failed.
  """
  start = time.monotonic()
  _announce("A fictional world, its notes, their corpus and its wordpieces")
  world = demo.make_world()
  if not Path(demo.path("vocab.txt")).exists():
    world_lib.write_world(demo.path("world"), world=world)
    world_lib.write_vocabulary(demo.path("vocab.txt"), world)
  demo.build_corpus("world", "corpus")
  _announce("Inverse cloze: the retriever learns to find a sentence's block")
  demo.train(ICT, "inverse_cloze", {})
  _announce("Reading: the reader learns to fill in names from a block")
  demo.train("reading", "reading", {})
  _announce("… and from blocks that the retriever finds")
  demo.train(
    "reading_retrieved",
    "reading_retrieved",
    {
      "INITIAL_CHECKPOINT": demo.path(ICT),
      "INITIAL_READER": demo.path("reading"),
    },
    sidecar=demo.index_builder("reading_retrieved"),
  )
  _announce("REALM pre-training: both learn, and the index is refreshed")
  _pretrain(demo)
  masked = demo.evaluate("masked", "eval_masked", REALM, {})
  _announce("Control: inverse cloze goes on for as many seconds")
  _continue_inverse_cloze(demo)
  _announce("Retrieval before fine-tuning: masked statements in new wordings")
  curves = {
    name: _recall_over_training(demo, name) for name in (REALM, ICT_CONTINUED)
  }
  before, after = (
    _recalls(demo, ICT_CONTINUED, step, "questions-validation")["recall_at_1"]
    for step in (min(curves[ICT_CONTINUED]), max(curves[ICT_CONTINUED]))
  )
  baseline, choose = (ICT, min) if before > after else (ICT_CONTINUED, max)
  _announce("Open QA with the REALM retriever")
  realm = _train_open_qa(demo, "open_qa", retriever=REALM)
  _announce("Control: the same reader, given random blocks")
  random_blocks = _evaluate_open_qa(
    demo, "random_blocks", "open_qa", {"CANDIDATES": "random"}
  )
  _announce("Control: the inverse-cloze retriever, without REALM pre-training")
  ict_only = _train_open_qa(demo, "ict_only", retriever=baseline)
  _announce("Control: BM25, with a reader trained on its blocks")
  bm25 = _train_on_bm25(demo)
  _announce(f"{_NUM_EDITS} facts change in the corpus; nothing is trained")
  followed = _follow_edits(demo, world)
  open_qa = {
    "realm": realm,
    "random_blocks": random_blocks,
    "bm25": bm25,
    "ict_only": ict_only,
  }
  return {
    **{
      name: {key: figures[key] for key in ("exact_match", *_RECALLS)}
      for name, figures in open_qa.items()
    },
    "statements": {
      "realm": curves[REALM][max(curves[REALM])],
      "ict_only": curves[ICT_CONTINUED][choose(curves[ICT_CONTINUED])],
    },
    "recall_over_training": {
      name: {str(step): recalls for step, recalls in curve.items()}
      for name, curve in curves.items()
    },
    "inverse_cloze_baseline": {
      "retriever": baseline,
      "validation_recall_at_1": {"started_from": before, "continued": after},
    },
    "masked_accuracy": {
      "with_retrieval": masked["masked_accuracy"],
      "null_only": masked["masked_accuracy_null"],
    },
    "edited_facts": {
      "edited": len(followed),
      "known": sum(known for known, _ in followed),
      "followed": sum(known and follows for known, follows in followed),
    },
    "generations_swapped": len({row["generation"] for row in demo.rows(REALM)})
    - 1,
    "wall_seconds": round(time.monotonic() - start, 1),
  }


def _pretrain(demo: Demo) -> None:
  """Pre-trains REALM, and builds the generation of its last checkpoint."""
  keep_all: dict[str, Value] = {"KEEP_GENERATIONS": _ALL}
  demo.train(
    REALM,
    "pretrain",
    {
      "INITIAL_CHECKPOINT": demo.path(ICT),
      "INITIAL_READER": demo.path("reading_retrieved"),
      "KEEP_CHECKPOINTS": _ALL,
    },
    sidecar=demo.command(
      "build_index", "build_index", {**demo.directories(REALM), **keep_all}
    ),
  )
  demo.build_index(REALM, demo.steps(REALM)[-1], keep_all)


def _continue_inverse_cloze(demo: Demo) -> None:
  """Trains the first stage's retriever for as long as REALM's took."""

  def step_seconds(name: str) -> list[float]:
    # The first step is compiled.
    return [row["step_seconds"] for row in demo.rows(name)][1:]

  seconds = sum(step_seconds(REALM))
  num_steps = round(seconds / statistics.mean(step_seconds(ICT)))
  num_steps = max(num_steps, _NUM_SAVES)
  demo.train(
    ICT_CONTINUED,
    "inverse_cloze",
    {
      "INITIAL_CHECKPOINT": demo.path(ICT),
      "NUM_STEPS": num_steps,
      "SAVE_EVERY_STEPS": -(-num_steps // _NUM_SAVES),
      "KEEP_CHECKPOINTS": _ALL,
    },
  )
  for step in demo.steps(ICT_CONTINUED):
    demo.build_index(ICT_CONTINUED, step, {"KEEP_GENERATIONS": _ALL})


def _recall_over_training(
  demo: Demo, name: str
) -> dict[int, Mapping[str, float]]:
  """Evaluates retrieval by a run's first and last checkpoint and some between.

  Only checkpoints of which a generation was built take part.

  Returns:
    `recall_at_1`, `recall_at_5` and `mrr`, by step.
  """
  published = GenerationStore(demo.path(f"{name}/generations")).steps()
  steps = [step for step in demo.steps(name) if step in published]
  places = np.linspace(0, len(steps) - 1, min(_MAX_POINTS, len(steps)))
  return {
    steps[place]: _recalls(demo, name, steps[place], STATEMENTS)
    for place in places.round().astype(int).tolist()
  }


def _recalls(
  demo: Demo, name: str, step: int, questions: str
) -> Mapping[str, float]:
  figures = demo.evaluate(
    retrieval_folder(name, step, questions),
    "eval_retrieval",
    name,
    {
      "CHECKPOINT_STEP": step,
      "QUESTIONS": demo.path(f"world/{questions}.jsonl"),
    },
  )
  return {recall: figures[recall] for recall in _RECALLS}


def retrieval_folder(name: str, step: int, questions: str) -> str:
  """Returns the name of the evaluation of a checkpoint's retriever."""
  return f"{questions}/{name}/{step}"


def _train_open_qa(demo: Demo, name: str, *, retriever: str) -> Figures:
  """Trains open QA from a stage's retriever, and evaluates it."""
  demo.train(
    name,
    "open_qa",
    {
      "TRAIN_QUESTIONS": demo.path("world/questions-train.jsonl"),
      "INITIAL_CHECKPOINT": demo.path(retriever),
      "INITIAL_READER": demo.path(REALM),
    },
    sidecar=demo.index_builder(name),
  )
  return _evaluate_open_qa(demo, name, name, {})


def _train_on_bm25(demo: Demo) -> Figures:
  """Trains open QA on BM25's blocks, and evaluates it.

  BM25 brings its own scores, so that the run has no towers. The generation
  that it searches needs some: those of the inverse cloze, which nothing reads.
  """
  scores: dict[str, Value] = {"INDEX_SCORES": True}
  demo.train(
    "bm25",
    "open_qa",
    {
      "TRAIN_QUESTIONS": demo.path("world/questions-train.jsonl"),
      "INITIAL_READER": demo.path(REALM),
      **scores,
    },
    sidecar=demo.command(
      "build_index",
      "build_index_bm25",
      {
        **demo.directories(REALM),
        "GENERATIONS_DIR": demo.path("bm25/generations"),
        "CHECKPOINT_STEP": 0,
      },
      ("--once",),
    ),
  )
  return _evaluate_open_qa(demo, "bm25", "bm25", scores)


def _evaluate_open_qa(
  demo: Demo, name: str, of: str, bindings: Mapping[str, Value]
) -> Figures:
  questions = demo.path("world/questions-test.jsonl")
  return demo.evaluate(name, "eval", of, {"QUESTIONS": questions, **bindings})


def _follow_edits(
  demo: Demo, world: world_lib.World
) -> list[tuple[bool, bool]]:
  """Edits facts, rebuilds corpus and index, and asks about the facts.

  Returns:
    For each fact, whether its question was answered rightly before, and whether
    it is now.
  """
  edited = edits.edit_facts(world, count=_NUM_EDITS, seed=0)
  edits.write_edited(demo.path("edited_world"), before=world, after=edited)
  demo.build_corpus("edited_world", "edited_corpus")
  corpus: dict[str, Value] = {"CORPUS_DIR": demo.path("edited_corpus")}
  generations = demo.path("edited_generations")
  demo.build_index("open_qa", 0, {"GENERATIONS_DIR": generations, **corpus})
  _evaluate_open_qa(
    demo,
    "edited",
    "open_qa",
    {
      "GENERATION": generations,
      "QUESTIONS": demo.path("edited_world/questions-edited.jsonl"),
      **corpus,
    },
  )
  known = demo.correct("open_qa")
  return [(known[id_], now) for id_, now in demo.correct("edited").items()]


def _announce(title: str) -> None:
  print(f"\n=== {title}", flush=True)
