"""The stages and controls of the demo, in their order."""

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.pipeline import Command, Step, Steps, Value, run
from experiments.world import edits
from experiments.world import world as world_lib
from realm_jax import configuration
from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.manifest import MANIFEST_NAME
from realm_jax.evaluation.outputs import PREDICTIONS
from realm_jax.training.metric_rows import read_rows

_RECIPES = Path("experiments/gin/demo")
# BLOCK_LENGTH of its model.gin.
_BLOCK_LENGTH = 36
# Finds the kinds of names, too, as the paper's tagger does.
_TAGGER = "experiments.world.names.tag"
_NUM_EDITS = 100
_RECALLS = ("recall_at_1", "recall_at_5", "mrr")

ICT, ICT_CONTINUED = "inverse_cloze", "inverse_cloze_continued"
REALM = "realm"
STATEMENTS, _VALIDATION = "statements-test", "questions-validation"


class Demo(Steps):
  """Steps with the demo's recipes and `extra_gin_files`, over one folder."""

  def __init__(self, output_dir: Path, extra_gin_files: Sequence[str]):
    recipes = {
      file.stem: [str(file), *extra_gin_files]
      for file in _RECIPES.glob("*.gin")
    }
    super().__init__(output_dir, recipes)
    self._world_files = [*recipes["world"]]

  def generate_world(self) -> world_lib.World:
    """Generates the world; writes it, its wordpieces and its corpus once."""
    generate = world_lib.generate
    world = configuration.parsed(generate, self._world_files).build(generate)
    if not Path(self.path("vocab.txt")).exists():
      world_lib.write_world(self.path("world"), world=world)
      world_lib.write_vocabulary(self.path("vocab.txt"), world)
    self.build_corpus("world", "corpus")
    return world

  def build_corpus(self, folder: str, corpus: str) -> None:
    """Builds a corpus of the articles of a world, unless it is there."""
    if (self.folder / corpus / MANIFEST_NAME).exists():
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

  def evaluate_retrieval(self, of: str, step: int, questions: str) -> Step:
    """Makes the evaluation of a checkpoint's retriever, over its snapshot."""
    return self.evaluate(
      *(f"{questions}/{of}/{step}", "eval_retrieval", of),
      QUESTIONS=self.path(f"world/{questions}.jsonl"),
      CHECKPOINT_STEP=step,
    )

  def train_open_qa(
    self,
    name: str,
    retriever: str | None,
    builder: Command | None = None,
    **bindings: Value,
  ) -> Step:
    """Makes open QA, over its first snapshot if no other builder is given."""
    return self.train(
      *(
        name,
        "open_qa",
        retriever,
        REALM,
        builder or self.first_snapshot(name),
      ),
      TRAIN_QUESTIONS=self.path("world/questions-train.jsonl"),
      **bindings,
    )

  def first_snapshot(self, name: str) -> Command:
    """Returns the command that builds the first snapshot of a stage."""
    return self.command("build_index", "build_index", name, "--once")

  def evaluate_open_qa(self, name: str, of: str, **settings: Any) -> Step:
    """Makes the evaluation of open QA, on the test questions by default."""
    questions = self.path("world/questions-test.jsonl")
    return self.evaluate(
      *(name, "eval", of), **{"QUESTIONS": questions, **settings}
    )


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
  world = demo.generate_world()
  _announce("Inverse cloze: the retriever learns to find a sentence's block")
  run(demo.train(ICT, "inverse_cloze"))
  _announce("Reading: the reader learns to fill in names from a block")
  run(demo.train("reading", "reading"))
  _announce("… and from blocks that the retriever finds")
  read = "reading_retrieved"
  run(demo.train(read, read, ICT, "reading", demo.first_snapshot(read)))
  _announce("REALM pre-training: both learn, and the index is refreshed")
  builder = demo.command("build_index", "build_index", REALM)
  run(demo.train(REALM, "pretrain", ICT, read, builder))
  pretraining = read_rows(demo.folder / REALM)
  last = pretraining[-1]["step"]
  run(demo.build_index(REALM, CHECKPOINT_STEP=last))
  masked = run(demo.evaluate("masked", "eval_masked", REALM)).figures()
  _announce("Control: inverse cloze goes on for as many seconds")
  # The first step is compiled.
  seconds = {
    name: [row["step_seconds"] for row in read_rows(demo.path(name))[1:]]
    for name in (ICT, REALM)
  }
  ratio = sum(seconds[REALM]) / statistics.mean(seconds[ICT])
  num_steps = max(1, round(ratio))
  run(
    demo.train(
      *(ICT_CONTINUED, "inverse_cloze", ICT),
      NUM_STEPS=num_steps,
      SAVE_EVERY_STEPS=num_steps,
    )
  )
  for step in (0, num_steps):
    run(demo.build_index(ICT_CONTINUED, CHECKPOINT_STEP=step))
  _announce("Retrieval before fine-tuning: masked statements in new wordings")
  before, after = (
    {
      questions: _scores(
        demo.evaluate_retrieval(ICT_CONTINUED, step, questions), *_RECALLS
      )
      for questions in (STATEMENTS, _VALIDATION)
    }
    for step in (0, num_steps)
  )
  validation = {
    "started_from": before[_VALIDATION]["recall_at_1"],
    "continued": after[_VALIDATION]["recall_at_1"],
  }
  baseline, best = ICT_CONTINUED, after
  if validation["started_from"] > validation["continued"]:
    baseline, best = ICT, before
  statements = _scores(
    demo.evaluate_retrieval(REALM, last, STATEMENTS), *_RECALLS
  )
  _announce("Open QA with the REALM retriever")
  run(demo.train_open_qa("open_qa", REALM))
  of_open_qa = ("exact_match", *_RECALLS)
  realm = _scores(demo.evaluate_open_qa("open_qa", "open_qa"), *of_open_qa)
  _announce("Control: the same reader, given random blocks")
  random_blocks = _scores(
    demo.evaluate_open_qa("random_blocks", "open_qa", CANDIDATES="random"),
    *of_open_qa,
  )
  _announce("Control: BM25, with a reader trained on its blocks")
  # BM25 brings its own scores, so that the run has no towers. The snapshot
  # that it searches needs some: those of the inverse cloze, which nothing
  # reads.
  builder = demo.command(
    *("build_index", "build_index_bm25", REALM, "--once"),
    SNAPSHOTS_DIR=demo.path("bm25/snapshots"),
    CHECKPOINT_STEP=0,
  )
  run(demo.train_open_qa("bm25", None, builder, INDEX_SCORES=True))
  bm25 = _scores(
    demo.evaluate_open_qa("bm25", "bm25", INDEX_SCORES=True), *of_open_qa
  )
  _announce("Control: the inverse-cloze retriever, without REALM pre-training")
  run(demo.train_open_qa("ict_only", baseline))
  ict_only = _scores(demo.evaluate_open_qa("ict_only", "ict_only"), *of_open_qa)
  _announce(f"{_NUM_EDITS} facts change in the corpus; nothing is trained")
  return {
    "realm": realm,
    "random_blocks": random_blocks,
    "bm25": bm25,
    "ict_only": ict_only,
    "statements": {
      "started_from": before[STATEMENTS],
      "realm": statements,
      "ict_only": best[STATEMENTS],
    },
    "inverse_cloze_baseline": {
      "retriever": baseline,
      "validation_recall_at_1": validation,
    },
    "masked_accuracy": {
      "with_retrieval": masked["masked_accuracy"],
      "null_only": masked["masked_accuracy_null"],
    },
    "edited_facts": _follow_edits(demo, world),
    "snapshots_swapped": len({row["snapshot"] for row in pretraining}) - 1,
    "wall_seconds": round(time.monotonic() - start, 1),
  }


def _follow_edits(demo: Demo, world: world_lib.World) -> dict[str, int]:
  """Edits facts, rebuilds corpus and index, and asks about the facts.

  Returns:
    How many facts were `edited`; how many of their questions were answered
    rightly before, `known`; and how many of those are now, `followed`.
  """
  edited = edits.edit_facts(world, count=_NUM_EDITS, seed=0)
  edits.write_edited(demo.path("edited_world"), before=world, after=edited)
  demo.build_corpus("edited_world", "edited_corpus")
  corpus = demo.path("edited_corpus")
  run(
    demo.build_index(
      "open_qa", "edited_snapshots", CHECKPOINT_STEP=0, CORPUS_DIR=corpus
    )
  )
  run(
    demo.evaluate_open_qa(
      *("edited", "open_qa"),
      snapshot="edited_snapshots",
      CORPUS_DIR=corpus,
      QUESTIONS=demo.path("edited_world/questions-edited.jsonl"),
    )
  )

  def correct(name: str) -> dict[str, bool]:
    path = demo.folder / "evaluations" / name / PREDICTIONS
    predictions = map(json.loads, path.read_text().splitlines())
    return {one["id"]: one["correct"] for one in predictions}

  before, now = correct("open_qa"), correct("edited")
  known = [right for id_, right in now.items() if before[id_]]
  return {"edited": len(now), "known": len(known), "followed": sum(known)}


def _scores(evaluation: Step, *names: str) -> Mapping[str, float]:
  """Runs an evaluation, and returns some of its figures."""
  figures = run(evaluation).figures()
  return {name: figures[name] for name in names}


def _announce(title: str) -> None:
  print(f"\n=== {title}", flush=True)
