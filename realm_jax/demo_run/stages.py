"""The stages and controls of the demo, in their order."""

import statistics
import time
from pathlib import Path
from typing import Any

from realm_jax.demo_run import recall
from realm_jax.demo_run.commands import DemoCommands, Figures
from realm_jax.demo_world import edits, vocabulary
from realm_jax.demo_world import world as world_lib
from realm_jax.stage_commands import Value
from realm_jax.training.metric_rows import read_rows

_NUM_EDITS = 20
# Checkpoints of the continued inverse cloze, for its curve.
_NUM_SAVES = 4
_ALL = 1000

ICT = "inverse_cloze"
ICT_CONTINUED = "inverse_cloze_continued"
REALM = "realm"


def run_demo(demo: DemoCommands) -> dict[str, Any]:
  """Runs every stage and control, and returns the contents of report.json.

  The inverse-cloze retriever that REALM is compared with is the better, on the
  validation questions, of the one that REALM starts from and of the same,
  trained on for as many seconds as REALM's pre-training took.
  """
  start = time.monotonic()
  _announce("A fictional world, its notes, their corpus and its wordpieces")
  world = _make_world(demo)
  _announce("Inverse cloze: the retriever learns to find a sentence's block")
  demo.train(ICT, "inverse_cloze")
  _announce("Reading: the reader learns to fill in names from a block")
  demo.train("reading", "reading")
  _announce("… and from blocks that the retriever finds")
  _train_on_retrieved(demo)
  _announce("REALM pre-training: both learn, and the index is refreshed")
  swaps = _pretrain(demo)
  masked = demo.evaluate("masked", "eval_masked", MODEL_DIR=demo.path(REALM))
  _announce("Control: inverse cloze goes on for as many seconds")
  _continue_inverse_cloze(demo)
  _announce("Retrieval before fine-tuning: masked statements in new wordings")
  curves = {
    run: recall.over_training(demo, run, questions="statements-test")
    for run in (REALM, ICT_CONTINUED)
  }
  baseline = recall.better_baseline(demo, ICT_CONTINUED)
  _announce("Open QA with the REALM retriever")
  realm = _train_open_qa(demo, "open_qa", retriever=REALM)
  _announce("Control: the same reader, given random blocks")
  random_blocks = _evaluate_open_qa(demo, "random_blocks", CANDIDATES="random")
  _announce("Control: the inverse-cloze retriever, without REALM pre-training")
  ict_only = _train_open_qa(demo, "ict_only", retriever=baseline.run)
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
      name: {
        key: figures[key]
        for key in ("exact_match", "recall_at_1", "recall_at_5", "mrr")
      }
      for name, figures in open_qa.items()
    },
    "statements": {
      "realm": curves[REALM][-1].recalls,
      "ict_only": curves[ICT_CONTINUED][baseline.place].recalls,
    },
    "recall_over_training": {
      run: {str(point.step): point.recalls for point in curve}
      for run, curve in curves.items()
    },
    "inverse_cloze_baseline": baseline.report(),
    "masked_accuracy": {
      "with_retrieval": masked["masked_accuracy"],
      "null_only": masked["masked_accuracy_null"],
    },
    "edited_facts": {
      "followed": round(edited["exact_match"] * edited["num_questions"]),
      "total": edited["num_questions"],
    },
    "generations_swapped": swaps,
    "wall_seconds": round(time.monotonic() - start, 1),
  }


def _make_world(demo: DemoCommands) -> world_lib.World:
  """Writes the world, its vocabulary and its corpus."""
  world = demo.make_world()
  world_lib.write_world(demo.path("world"), world=world)
  vocabulary.write_vocabulary(demo.path("vocab.txt"), world)
  demo.build_corpus("world", "corpus")
  return world


def _train_on_retrieved(demo: DemoCommands) -> None:
  """Trains the reader on blocks that the inverse-cloze retriever finds."""
  name = "reading_retrieved"
  with demo.index_builder(name, once=True):
    demo.train(
      name,
      name,
      INITIAL_CHECKPOINT=demo.path(ICT),
      INITIAL_READER=demo.path("reading"),
    )


def _pretrain(demo: DemoCommands) -> int:
  """Pre-trains REALM, and returns how often a generation was swapped in."""
  with demo.index_builder(REALM, KEEP_GENERATIONS=_ALL):
    result = demo.train(
      REALM,
      "pretrain",
      INITIAL_CHECKPOINT=demo.path(ICT),
      INITIAL_READER=demo.path("reading_retrieved"),
      KEEP_CHECKPOINTS=_ALL,
    )
  demo.build_index(REALM, KEEP_GENERATIONS=_ALL)
  return result.swaps


def _continue_inverse_cloze(demo: DemoCommands) -> None:
  """Trains the first stage's retriever for as long as REALM's took."""
  seconds = sum(_step_seconds(demo, REALM))
  num_steps = round(seconds / statistics.mean(_step_seconds(demo, ICT)))
  num_steps = max(num_steps, _NUM_SAVES)
  demo.train(
    ICT_CONTINUED,
    "inverse_cloze",
    INITIAL_CHECKPOINT=demo.path(ICT),
    NUM_STEPS=num_steps,
    SAVE_EVERY_STEPS=-(-num_steps // _NUM_SAVES),
    KEEP_CHECKPOINTS=_ALL,
  )
  for step in recall.checkpoints(demo, ICT_CONTINUED):
    demo.build_index(ICT_CONTINUED, CHECKPOINT_STEP=step, KEEP_GENERATIONS=_ALL)


def _step_seconds(demo: DemoCommands, run: str) -> list[float]:
  """Returns the seconds of each step but the first, which is compiled."""
  return [row["step_seconds"] for row in read_rows(Path(demo.path(run)))][1:]


def _train_open_qa(demo: DemoCommands, name: str, *, retriever: str) -> Figures:
  """Trains open QA from a stage's retriever, and evaluates it."""
  with demo.index_builder(name, once=True):
    demo.train(
      name,
      "open_qa",
      TRAIN_QUESTIONS=demo.path("world/questions-train.jsonl"),
      INITIAL_CHECKPOINT=demo.path(retriever),
      INITIAL_READER=demo.path(REALM),
    )
  return _evaluate_open_qa(demo, name, MODEL_DIR=demo.path(name))


def _train_on_bm25(demo: DemoCommands) -> Figures:
  """Trains open QA on BM25's blocks, and evaluates it.

  BM25 brings its own scores, so that the run has no towers. The generation
  that it searches needs some: those of the inverse cloze, which nothing reads.
  """
  name = "bm25"
  with demo.index_builder(
    name,
    once=True,
    recipe="build_index_bm25",
    MODEL_DIR=demo.path(REALM),
    GENERATIONS_DIR=demo.path(f"{name}/generations"),
    CHECKPOINT_STEP=0,
  ):
    demo.train(
      name,
      "open_qa",
      TRAIN_QUESTIONS=demo.path("world/questions-train.jsonl"),
      INITIAL_READER=demo.path(REALM),
      INDEX_SCORES=True,
    )
  return _evaluate_open_qa(
    demo, name, MODEL_DIR=demo.path(name), INDEX_SCORES=True
  )


def _evaluate_open_qa(
  demo: DemoCommands, name: str, **bindings: Value
) -> Figures:
  """Evaluates open QA, by default the run with the REALM retriever."""
  defaults: dict[str, Value] = {
    "MODEL_DIR": demo.path("open_qa"),
    "QUESTIONS": demo.path("world/questions-test.jsonl"),
  }
  return demo.evaluate(name, "eval", **(defaults | bindings))


def _evaluate_edited_world(
  demo: DemoCommands, world: world_lib.World
) -> Figures:
  """Edits facts, rebuilds corpus and index, and asks about the facts."""
  edited = edits.edit_facts(world, count=_NUM_EDITS, seed=0)
  edits.write_edited(demo.path("edited_world"), before=world, after=edited)
  demo.build_corpus("edited_world", "edited_corpus")
  corpus_dir = demo.path("edited_corpus")
  generations = demo.path("edited_generations")
  demo.build_index(
    "open_qa",
    CORPUS_DIR=corpus_dir,
    GENERATIONS_DIR=generations,
    CHECKPOINT_STEP=0,
  )
  return _evaluate_open_qa(
    demo,
    "edited",
    CORPUS_DIR=corpus_dir,
    GENERATION=generations,
    QUESTIONS=demo.path("edited_world/questions-edited.jsonl"),
  )


def _announce(title: str) -> None:
  print(f"\n=== {title}", flush=True)
