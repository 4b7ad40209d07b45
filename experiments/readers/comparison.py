"""The compared readers, their steps, and the report."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.comparing import Comparison, Seed, SystemSteps
from experiments.data import GeneratedWorlds, write_judged
from experiments.demo.stages import demo_worlds, follow_edits
from experiments.pipeline import Step, Value, run, run_in_cpu_seconds
from experiments.world.world import World
from realm_jax.training.metric_rows import read_rows

_JUDGED = "judged.jsonl"
_METRICS = ("exact_match", "recall_at_5", "followed", "cpu_seconds")


class Contender(NamedTuple):
  """A reader to compare.

  Attributes:
    title: Name in the report.
    recipes: Folder of its recipes.
    stages: Recipes of its stages, in order. Each stage starts from the previous
      one, and the first from inverse cloze.
    reader: Bindings of its reader, for training and evaluation.
    training: Additional bindings for training.
    trains_blocks: Whether fine-tuning also trains the block tower, so that the
      index must be refreshed.
    steps: Number of steps of stages, if not the recipe's.
    pretrained: Contender whose pre-training, and any earlier stages, this one
      shares.
  """

  title: str
  recipes: str
  stages: Sequence[str]
  reader: Mapping[str, Value] = {}
  training: Mapping[str, Value] = {}
  trains_blocks: bool = False
  steps: Mapping[str, int] = {}
  pretrained: str = ""


_STAGES = ("reading", "reading_retrieved", "pretrain", "open_qa")
CONTENDERS = {
  "span": Contender("BERT that points at spans (REALM)", "demo", _STAGES),
  # Takes the CPU time of EMDR²'s steps.
  "span_longer": Contender(
    *("the same, more steps", "demo", _STAGES),
    steps=dict(zip(_STAGES, (4200, 1400, 1200, 1400), strict=True)),
  ),
  "judged": Contender(
    "the first, judged documents before questions",
    *("demo", (*_STAGES[:-1], "judged", "open_qa")),
    steps={"open_qa": 600},
    pretrained="span",
  ),
  "fid": Contender(
    "T5 over all blocks (EMDR²)", "readers", _STAGES, trains_blocks=True
  ),
  "marginal": Contender(
    *("T5 over each block (RAG)", "readers", _STAGES),
    *({"FUSION": "marginal"}, {"OBJECTIVE": "marginal"}),
    trains_blocks=True,
  ),
  "closed_book": Contender(
    *("T5, closed book", "readers", ("closed_book", "closed_book_qa"))
  ),
}


class ReaderSteps(SystemSteps):
  """The steps of one contender, in the folder of a seed."""

  def __init__(
    self, name: str, folder: Path, seed: int, gin_files: Sequence[str]
  ):
    self.name, self.contender = name, CONTENDERS[name]
    self.gin_folders = "demo", self.contender.recipes
    super().__init__(folder, seed, gin_files)
    reader = self.contender.reader
    training = {**reader, **self.contender.training, "SEED": seed}
    stages = dict.fromkeys(self.contender.stages, training)
    self.always = {**self.always, **stages, "eval": reader}

  def metrics(self, worlds: GeneratedWorlds, world: World) -> dict[str, Any]:
    """Trains and evaluates the contender, and returns its metrics."""
    reads = "closed_book" not in self.contender.stages
    retriever = before = None
    if reads:
      retriever = run(self.train("inverse_cloze", "inverse_cloze"))
    if "judged" in self.contender.stages:
      write_judged(self.folder / "world", self.folder / _JUDGED)
    seconds, steps = 0.0, {}
    for stage in self.contender.stages:
      training = self.stage(stage, retriever, before)
      seconds += run_in_cpu_seconds(training)
      steps[stage] = read_rows(training.folder)[-1]["step"]
      if stage in ("pretrain", "judged"):
        retriever = training
      if stage != "judged":
        before = training
    assert before is not None
    # With a frozen block tower, the snapshot of fine-tuning is evaluated.
    checkpoint, snapshot = 0, None
    if self.contender.trains_blocks:
      checkpoint = steps[self.contender.stages[-1]]
      snapshot = self.build_index(
        before, f"{self.name}-snapshots", CHECKPOINT_STEP=checkpoint
      )
    evaluation = self.evaluate(
      *(before.folder.name, "eval", before, snapshot),
      QUESTIONS=self.path("world/questions-test.jsonl"),
      CANDIDATES="index" if reads else "none",
    )
    metrics = {**run(evaluation).metrics(), "cpu_seconds": round(seconds)}
    if reads:
      edited = follow_edits(self, worlds, world, before, checkpoint)
      metrics["followed"] = edited["followed"] / max(edited["known"], 1)
    shown = {name: metrics[name] for name in _METRICS if name in metrics}
    return {**shown, "steps": steps}

  def stage(
    self, stage: str, retriever: Step | None, reader: Step | None
  ) -> Step:
    """Returns a training stage, with the builder of its index."""
    is_own = stage in ("judged", "open_qa") or not self.contender.pretrained
    name = f"{self.name if is_own else self.contender.pretrained}-{stage}"
    builder = None
    if stage == "pretrain" or (
      stage == "open_qa" and self.contender.trains_blocks
    ):
      builder = self.builder(name)
    elif stage in ("reading_retrieved", "open_qa"):
      builder = self.first_snapshot(name)
    starts = None if stage == "reading" else retriever
    bindings: dict[str, Value] = {}
    if stage.endswith("qa"):
      bindings["TRAIN_QUESTIONS"] = self.path("world/questions-train.jsonl")
    if stage in self.contender.steps:
      steps = self.contender.steps[stage]
      bindings["NUM_STEPS"] = steps
      if stage != "pretrain":  # whose checkpoints refresh the index
        bindings["SAVE_EVERY_STEPS"] = steps
    if stage == "judged":
      reader, bindings["TRAIN_QUESTIONS"] = None, self.path(_JUDGED)
    return self.train(name, stage, starts, reader, builder, **bindings)


def _measure(name: str, seed: Seed) -> dict[str, Any]:
  steps = ReaderSteps(name, seed.folder, seed.number, seed.gin_files)
  return steps.metrics(seed.worlds, seed.world)


COMPARISON = Comparison(
  "readers",
  {name: contender.title for name, contender in CONTENDERS.items()},
  _METRICS,
  lambda gin_files: demo_worlds(
    ["experiments/gin/readers/world.gin", *gin_files]
  ),
  _measure,
)
