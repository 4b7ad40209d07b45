"""The stages and controls of the demo, in order."""

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.data import CORPUS, GeneratedWorlds, read_lines
from experiments.pipeline import (
  Command,
  Step,
  Steps,
  Value,
  run,
  steps_of_equal_seconds,
)
from experiments.world.world import World, edit_facts, write_edited
from realm_jax import configuration
from realm_jax.evaluation.scores import PREDICTIONS
from realm_jax.training.metric_rows import read_rows

_RECIPES = Path("experiments/gin/demo")
_NUM_EDITS = 100
_EDITED_CORPUS = "edited_corpus"
_RECALLS = ("recall_at_1", "recall_at_5", "mrr")

ICT, ICT_CONTINUED = "inverse_cloze", "inverse_cloze_continued"
REALM = "realm"
STATEMENTS, _VALIDATION = "statements-test", "questions-validation"


def demo_worlds(extra_gin_files: Sequence[str] = ()) -> GeneratedWorlds:
  """Returns the demo's worlds, with settings from additional gin files."""
  files = [str(_RECIPES / "model.gin"), str(_RECIPES / "world.gin")]
  parsed = configuration.parsed(GeneratedWorlds, [*files, *extra_gin_files])
  return parsed.build(GeneratedWorlds)


class Demo(Steps):
  """Steps in a folder, with the demo's recipes and `extra_gin_files`."""

  def __init__(self, output_dir: Path, extra_gin_files: Sequence[str]):
    recipes = {
      file.stem: [str(file), *extra_gin_files]
      for file in _RECIPES.glob("*.gin")
    }
    super().__init__(output_dir, recipes, str(output_dir / CORPUS), {})
    self.worlds = demo_worlds(extra_gin_files)

  def recalls(
    self, of: Step, checkpoint: int, questions: str
  ) -> Mapping[str, float]:
    """Builds the snapshot of a checkpoint, and evaluates its retriever."""
    run(self.build_index(of, CHECKPOINT_STEP=checkpoint))
    evaluation = self.evaluate(
      *(f"{questions}/{of.folder.name}/{checkpoint}", "eval_retrieval", of),
      QUESTIONS=self.path(f"world/{questions}.jsonl"),
      CHECKPOINT_STEP=checkpoint,
    )
    metrics = run(evaluation).metrics()
    return {name: metrics[name] for name in _RECALLS}

  def answers(self, name: str, of: Step, **bindings: Any) -> dict[str, float]:
    """Evaluates open QA on the test questions."""
    questions = self.path("world/questions-test.jsonl")
    evaluation = self.evaluate(
      *(name, "eval", of), QUESTIONS=questions, **bindings
    )
    metrics = run(evaluation).metrics()
    return {name: metrics[name] for name in ("exact_match", *_RECALLS)}

  def open_qa(
    self,
    name: str,
    retriever: Step | None,
    reader: Step,
    builder: Command | None = None,
    **bindings: Value,
  ) -> tuple[Step, dict[str, float]]:
    """Trains and evaluates open QA, by default with its first snapshot."""
    training = self.train(
      *(name, "open_qa", retriever, reader),
      builder or self.first_snapshot(name),
      TRAIN_QUESTIONS=self.path("world/questions-train.jsonl"),
      **bindings,
    )
    return run(training), self.answers(name, training, **bindings)


def run_demo(demo: Demo) -> dict[str, Any]:
  """Runs every stage and control, and returns the contents of report.json.

  REALM is compared with the better of two inverse-cloze retrievers, by the
  validation questions: the one that REALM starts from, and the same one trained
  further, for the duration of REALM's pre-training. Finished steps are reused.

  Raises:
    StoppedError: SIGTERM arrived; the same call continues.
  """
  start = time.monotonic()
  _announce("A fictional world, its notes, their corpus and its wordpieces")
  world = demo.worlds.prepare(demo.folder, demo.worlds.world.seed)
  _announce("Inverse cloze: the retriever learns to find a sentence's block")
  cloze = run(demo.train(ICT, "inverse_cloze"))
  _announce("Reading: the reader learns to fill in names from a block")
  reading = run(demo.train("reading", "reading"))
  _announce("… and from blocks that the retriever finds")
  name = "reading_retrieved"
  first = demo.first_snapshot(name)
  reading = run(demo.train(name, name, cloze, reading, first))
  _announce("REALM pre-training: both learn, and the index is refreshed")
  builder = demo.builder(REALM)
  realm = run(demo.train(REALM, "pretrain", cloze, reading, builder))
  rows = read_rows(realm.folder)
  last = rows[-1]["step"]
  run(demo.build_index(realm, CHECKPOINT_STEP=last))
  masked = run(demo.evaluate("masked", "eval_masked", realm)).metrics()
  _announce("Control: inverse cloze goes on for as many seconds")
  # Without the first step, which is compiled.
  cloze_seconds, realm_seconds = (
    [row["step_seconds"] for row in read_rows(step.folder)[1:]]
    for step in (cloze, realm)
  )
  num_steps = steps_of_equal_seconds(
    len(realm_seconds),
    statistics.mean(realm_seconds),
    statistics.mean(cloze_seconds),
  )
  continued = run(
    demo.train(
      *(ICT_CONTINUED, "inverse_cloze", cloze),
      NUM_STEPS=num_steps,
      SAVE_EVERY_STEPS=num_steps,
    )
  )
  _announce("Retrieval before fine-tuning: masked statements in new wordings")
  before, after = (
    {
      questions: demo.recalls(continued, checkpoint, questions)
      for questions in (STATEMENTS, _VALIDATION)
    }
    for checkpoint in (0, num_steps)
  )
  validation = {
    "started_from": before[_VALIDATION]["recall_at_1"],
    "continued": after[_VALIDATION]["recall_at_1"],
  }
  baseline, best = continued, after
  if validation["started_from"] > validation["continued"]:
    baseline, best = cloze, before
  statements = demo.recalls(realm, last, STATEMENTS)
  _announce("Open QA with the REALM retriever")
  open_qa, answers = demo.open_qa("open_qa", realm, realm)
  _announce("Control: the same reader, given random blocks")
  random_blocks = demo.answers("random_blocks", open_qa, CANDIDATES="random")
  _announce("Control: BM25, with a reader trained on its blocks")
  # BM25 has its own scores, so the run has no towers. But its snapshot needs
  # some, so it gets the towers of inverse cloze, which nothing uses.
  builder = demo.command(
    *("build_index", "build_index_bm25", realm.folder, "--once"),
    SNAPSHOTS_DIR=demo.path("bm25/snapshots"),
    CHECKPOINT_STEP=0,
  )
  _, bm25 = demo.open_qa("bm25", None, realm, builder, INDEX_SCORES=True)
  _announce("Control: the inverse-cloze retriever, without REALM pre-training")
  _, ict_only = demo.open_qa("ict_only", baseline, realm)
  _announce(f"{_NUM_EDITS} facts change in the corpus; nothing is trained")
  return {
    "realm": answers,
    "random_blocks": random_blocks,
    "bm25": bm25,
    "ict_only": ict_only,
    "statements": {
      "started_from": before[STATEMENTS],
      "realm": statements,
      "ict_only": best[STATEMENTS],
    },
    "inverse_cloze_baseline": {
      "retriever": baseline.folder.name,
      "validation_recall_at_1": validation,
    },
    "masked_accuracy": {
      "with_retrieval": masked["masked_accuracy"],
      "null_only": masked["masked_accuracy_null"],
    },
    "edited_facts": follow_edits(demo, demo.worlds, world, open_qa),
    "snapshots_swapped": len({row["snapshot"] for row in rows}) - 1,
    "wall_seconds": round(time.monotonic() - start, 1),
  }


def follow_edits(
  steps: Steps,
  worlds: GeneratedWorlds,
  world: World,
  open_qa: Step,
  checkpoint_step: int = 0,
) -> dict[str, int]:
  """Edits facts, rebuilds corpus and index, and asks about the facts.

  The run must have been evaluated before, with the same recipes. The index is
  built with a checkpoint's block tower.

  Returns:
    Numbers of facts: all `edited` ones, those `known` before because their
    questions were answered correctly, and known ones whose edit was `followed`.
  """
  edited = edit_facts(world, count=_NUM_EDITS, seed=0)
  folder = steps.folder / "edited_world"
  write_edited(folder, before=world, after=edited)
  worlds.build(steps.folder, _EDITED_CORPUS, "edited_world/articles.jsonl")
  corpus = {"CORPUS_DIR": steps.path(_EDITED_CORPUS)}
  name = open_qa.folder.name
  snapshot = steps.build_index(
    open_qa,
    f"edited_snapshots/{name}",
    CHECKPOINT_STEP=checkpoint_step,
    **corpus,
  )
  evaluation = steps.evaluate(
    *(f"edited/{name}", "eval", open_qa, snapshot),
    QUESTIONS=str(folder / "questions-edited.jsonl"),
    **corpus,
  )
  after = run(evaluation).folder
  before, now = (
    {one["id"]: one["correct"] for one in read_lines(folder / PREDICTIONS)}
    for folder in (steps.folder / "evaluations" / name, after)
  )
  known = [right for id_, right in now.items() if before[id_]]
  return {"edited": len(now), "known": len(known), "followed": sum(known)}


def _announce(title: str) -> None:
  print(f"\n=== {title}", flush=True)
