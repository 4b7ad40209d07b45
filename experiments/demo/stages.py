"""The stages and controls of the demo, in their order."""

import dataclasses
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.pipeline import Command, Step, Value, call, run
from experiments.world import edits
from experiments.world import world as world_lib
from realm_jax import configuration
from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.manifest import MANIFEST_NAME
from realm_jax.evaluation.outputs import PREDICTIONS
from realm_jax.snapshots.store import SnapshotStore
from realm_jax.training.metric_rows import read_rows

_RECIPES = "experiments/gin/demo"
# BLOCK_LENGTH of its model.gin.
_BLOCK_LENGTH = 36
# Finds the kinds of names, too, as the paper's tagger does.
_TAGGER = "experiments.world.names.tag"
_NUM_EDITS = 100
_RECALLS = ("recall_at_1", "recall_at_5", "mrr")

ICT, ICT_CONTINUED = "inverse_cloze", "inverse_cloze_continued"
REALM = "realm"
STATEMENTS = "statements-test"


@dataclasses.dataclass(frozen=True)
class Demo:
  """The commands of the demo, each with its recipe, over one directory.

  Attributes:
    output_dir: Directory of everything that the demo writes.
    extra_gin_files: Gin files that are applied after each stage's recipe.
  """

  output_dir: Path
  extra_gin_files: Sequence[str]

  def path(self, name: str) -> str:
    """Returns the path of a file or folder of the demo."""
    return str(self.output_dir / name)

  def command(
    self, module: str, recipe: str, of: str, *flags: str, **bindings: Value
  ) -> Command:
    """Returns a command with a recipe of the demo, over the stage `of`."""
    files = [f"{_RECIPES}/{recipe}.gin", *self.extra_gin_files]
    own = {"MODEL_DIR": self.path(of), "CORPUS_DIR": self.path("corpus")}
    return Command(module, files, {**own, **bindings}, flags)

  def first_snapshot(self, of: str) -> Command:
    """Returns the command that builds the first snapshot of a stage."""
    return self.command("build_index", "build_index", of, "--once")

  def train(
    self,
    name: str,
    recipe: str,
    builder: Command | None = None,
    **bindings: Value,
  ) -> None:
    """Trains a stage in a folder of its own, with its index builder if any."""
    command = self.command("train", recipe, name, **bindings)
    run(Step(command, self.output_dir / name, builder))

  def evaluate(
    self, name: str, recipe: str, of: str, **bindings: Value
  ) -> Mapping[str, Any]:
    """Evaluates the stage `of`; the outputs go to a folder of `evaluations`."""
    folder = self.output_dir / "evaluations" / name
    bindings = {"OUTPUT_DIR": str(folder), **bindings}
    step = Step(self.command("evaluate", recipe, of, **bindings), folder)
    run(step)
    return step.figures()

  def build_index(self, name: str, step: int, **bindings: Value) -> None:
    """Builds the snapshot of a stage's checkpoint, unless it is there."""
    folder = bindings.get("SNAPSHOTS_DIR", self.path(f"{name}/snapshots"))
    if step not in SnapshotStore(str(folder)).steps():
      command = self.command(
        *("build_index", "build_index", name, "--once"),
        **{"CHECKPOINT_STEP": step, **bindings},
      )
      call(command)

  def build_corpus(self, folder: str, corpus: str) -> None:
    """Builds a corpus of the articles of a world, unless it is there."""
    if (self.output_dir / corpus / MANIFEST_NAME).exists():
      return
    articles = self.path(f"{folder}/articles.jsonl")
    settings = {
      "output_dir": self.path(corpus),
      "vocab": self.path("vocab.txt"),
      "block_length": _BLOCK_LENGTH,
      "tagger": _TAGGER,
    }
    given = " ".join(f"--{name}={value}" for name, value in settings.items())
    print(
      f"\n$ python -m realm_jax.build_corpus --input={articles} {given}",
      flush=True,
    )
    print(build_corpus([articles], **settings).table())


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
  files = [f"{_RECIPES}/world.gin", *demo.extra_gin_files]
  generate = world_lib.generate
  world = configuration.parsed(generate, files).build(generate)
  if not Path(demo.path("vocab.txt")).exists():
    world_lib.write_world(demo.path("world"), world=world)
    world_lib.write_vocabulary(demo.path("vocab.txt"), world)
  demo.build_corpus("world", "corpus")
  _announce("Inverse cloze: the retriever learns to find a sentence's block")
  demo.train(ICT, "inverse_cloze")
  _announce("Reading: the reader learns to fill in names from a block")
  demo.train("reading", "reading")
  _announce("… and from blocks that the retriever finds")
  demo.train(
    *("reading_retrieved", "reading_retrieved"),
    demo.first_snapshot("reading_retrieved"),
    INITIAL_CHECKPOINT=demo.path(ICT),
    INITIAL_READER=demo.path("reading"),
  )
  _announce("REALM pre-training: both learn, and the index is refreshed")
  demo.train(
    *(REALM, "pretrain"),
    demo.command("build_index", "build_index", REALM),
    INITIAL_CHECKPOINT=demo.path(ICT),
    INITIAL_READER=demo.path("reading_retrieved"),
  )
  pretraining = read_rows(demo.output_dir / REALM)
  demo.build_index(REALM, pretraining[-1]["step"])
  masked = demo.evaluate("masked", "eval_masked", REALM)
  _announce("Control: inverse cloze goes on for as many seconds")
  num_steps = _continue_inverse_cloze(demo)
  _announce("Retrieval before fine-tuning: masked statements in new wordings")
  before, after = (
    {
      questions: _recalls(demo, ICT_CONTINUED, step, questions)
      for questions in (STATEMENTS, "questions-validation")
    }
    for step in (0, num_steps)
  )
  baseline, best = ICT_CONTINUED, after
  validation = [
    found["questions-validation"]["recall_at_1"] for found in (before, after)
  ]
  if validation[0] > validation[1]:
    baseline, best = ICT, before
  statements = _recalls(demo, REALM, pretraining[-1]["step"], STATEMENTS)
  _announce("Open QA with the REALM retriever")
  open_qa = {"realm": _train_open_qa(demo, "open_qa", retriever=REALM)}
  _announce("Control: the same reader, given random blocks")
  open_qa["random_blocks"] = _evaluate_open_qa(
    demo, "random_blocks", "open_qa", CANDIDATES="random"
  )
  _announce("Control: BM25, with a reader trained on its blocks")
  open_qa["bm25"] = _train_on_bm25(demo)
  _announce("Control: the inverse-cloze retriever, without REALM pre-training")
  open_qa["ict_only"] = _train_open_qa(demo, "ict_only", retriever=baseline)
  _announce(f"{_NUM_EDITS} facts change in the corpus; nothing is trained")
  followed = _follow_edits(demo, world)
  return {
    **{
      name: {key: figures[key] for key in ("exact_match", *_RECALLS)}
      for name, figures in open_qa.items()
    },
    "statements": {
      "started_from": before[STATEMENTS],
      "realm": statements,
      "ict_only": best[STATEMENTS],
    },
    "inverse_cloze_baseline": {
      "retriever": baseline,
      "validation_recall_at_1": dict(
        zip(("started_from", "continued"), validation, strict=True)
      ),
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
    "snapshots_swapped": len({row["snapshot"] for row in pretraining}) - 1,
    "wall_seconds": round(time.monotonic() - start, 1),
  }


def _continue_inverse_cloze(demo: Demo) -> int:
  """Trains the first stage's retriever for as long as REALM's took.

  Snapshots of its first and of its last checkpoint are built.

  Returns:
    The number of steps.
  """

  def step_seconds(name: str) -> list[float]:
    # The first step is compiled.
    return [row["step_seconds"] for row in read_rows(demo.path(name))][1:]

  seconds = sum(step_seconds(REALM))
  num_steps = max(1, round(seconds / statistics.mean(step_seconds(ICT))))
  demo.train(
    *(ICT_CONTINUED, "inverse_cloze"),
    INITIAL_CHECKPOINT=demo.path(ICT),
    NUM_STEPS=num_steps,
    SAVE_EVERY_STEPS=num_steps,
  )
  for step in (0, num_steps):
    demo.build_index(ICT_CONTINUED, step)
  return num_steps


def _recalls(
  demo: Demo, name: str, step: int, questions: str
) -> Mapping[str, float]:
  """Evaluates retrieval by a checkpoint, whose snapshot has been built."""
  figures = demo.evaluate(
    *(retrieval_folder(name, step, questions), "eval_retrieval", name),
    QUESTIONS=demo.path(f"world/{questions}.jsonl"),
    CHECKPOINT_STEP=step,
  )
  return {recall: figures[recall] for recall in _RECALLS}


def retrieval_folder(name: str, step: int, questions: str) -> str:
  """Returns the name of the evaluation of a checkpoint's retriever."""
  return f"{questions}/{name}/{step}"


def _train_open_qa(
  demo: Demo, name: str, *, retriever: str
) -> Mapping[str, Any]:
  """Trains open QA from a stage's retriever, and evaluates it."""
  demo.train(
    *(name, "open_qa", demo.first_snapshot(name)),
    TRAIN_QUESTIONS=demo.path("world/questions-train.jsonl"),
    INITIAL_CHECKPOINT=demo.path(retriever),
    INITIAL_READER=demo.path(REALM),
  )
  return _evaluate_open_qa(demo, name, name)


def _train_on_bm25(demo: Demo) -> Mapping[str, Any]:
  """Trains open QA on BM25's blocks, and evaluates it.

  BM25 brings its own scores, so that the run has no towers. The snapshot
  that it searches needs some: those of the inverse cloze, which nothing reads.
  """
  builder = demo.command(
    *("build_index", "build_index_bm25", REALM, "--once"),
    SNAPSHOTS_DIR=demo.path("bm25/snapshots"),
    CHECKPOINT_STEP=0,
  )
  demo.train(
    *("bm25", "open_qa", builder),
    TRAIN_QUESTIONS=demo.path("world/questions-train.jsonl"),
    INITIAL_READER=demo.path(REALM),
    INDEX_SCORES=True,
  )
  return _evaluate_open_qa(demo, "bm25", "bm25", INDEX_SCORES=True)


def _evaluate_open_qa(
  demo: Demo, name: str, of: str, **bindings: Value
) -> Mapping[str, Any]:
  questions = demo.path("world/questions-test.jsonl")
  bindings = {"QUESTIONS": questions, **bindings}
  return demo.evaluate(name, "eval", of, **bindings)


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
  corpus = demo.path("edited_corpus")
  snapshots = demo.path("edited_snapshots")
  demo.build_index("open_qa", 0, SNAPSHOTS_DIR=snapshots, CORPUS_DIR=corpus)
  _evaluate_open_qa(
    *(demo, "edited", "open_qa"),
    SNAPSHOT=snapshots,
    CORPUS_DIR=corpus,
    QUESTIONS=demo.path("edited_world/questions-edited.jsonl"),
  )

  def correct(name: str) -> dict[str, bool]:
    path = demo.output_dir / "evaluations" / name / PREDICTIONS
    predictions = map(json.loads, path.read_text().splitlines())
    return {one["id"]: one["correct"] for one in predictions}

  known = correct("open_qa")
  return [(known[id_], now) for id_, now in correct("edited").items()]


def _announce(title: str) -> None:
  print(f"\n=== {title}", flush=True)
