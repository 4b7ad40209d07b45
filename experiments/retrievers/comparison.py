"""Systems that learn from judged passages, and the report."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from experiments.comparing import Comparison
from experiments.data import CORPUS, write_judged
from experiments.demo.stages import demo_worlds
from experiments.pipeline import (
  Command,
  Step,
  Steps,
  Value,
  run,
  run_in_cpu_seconds,
)

_GIN = Path("experiments/gin")
_METRICS = ("recall_at_1", "recall_at_5", "mrr")


class RetrieverSteps(Steps):
  """The steps of all systems, in the folder of a seed."""

  def __init__(self, folder: Path, seed: int, gin_files: Sequence[str]):
    files = [
      *(_GIN / "demo").glob("*.gin"),
      *(_GIN / "retrievers").glob("*.gin"),
    ]
    recipes = {path.stem: [str(path), *gin_files] for path in sorted(files)}
    trained = (
      *("inverse_cloze", "reading", "reading_retrieved"),
      *("judged", "judged_mined", "reranking", "distillation"),
    )
    seeds: Mapping[str, Value] = {"SEED": seed}
    always = dict.fromkeys(trained, seeds)
    super().__init__(folder, recipes, str(folder / CORPUS), always)

  def start(self) -> Step:
    """Returns the common start of all systems.

    Its retriever was trained by inverse cloze, and its reader on the blocks
    that this retriever finds.
    """
    cloze = self.train("inverse_cloze", "inverse_cloze")
    reading = self.train("reading", "reading")
    name = "reading_retrieved"
    return self.train(name, name, cloze, reading, self.first_snapshot(name))

  def judged(self, name: str, start: Step, builder: Command | None) -> Step:
    """Returns the training of the recipe `name` on the judged questions."""
    questions = self.folder / "judged.jsonl"
    if not questions.exists():
      write_judged(self.folder / "world", questions)
    return self.train(
      *(name, name, start, None, builder), TRAIN_QUESTIONS=str(questions)
    )

  def builder(self, name: str) -> Command:
    """Returns the command that refreshes the index of a run."""
    return self.command("build_index", "build_index", self.folder / name)

  def metrics(self, of: Step, step: int, recipe: str) -> dict[str, float]:
    """Evaluates a checkpoint's retrieval on the test questions."""
    name = f"{of.folder.name}-snapshots"
    evaluation = self.evaluate(
      *(of.folder.name, recipe, of),
      self.build_index(of, name, CHECKPOINT_STEP=step),
      QUESTIONS=self.path("world/questions-test.jsonl"),
    )
    found = run(evaluation).metrics()
    return {name: found[name] for name in _METRICS}


def _start(steps: RetrieverSteps) -> dict[str, float]:
  """Only inverse cloze."""
  return steps.metrics(run(steps.start()), 0, "eval_retrieval")


def _judged(steps: RetrieverSteps) -> dict[str, float]:
  """In-batch negatives."""
  return _trained(steps, "judged", run(steps.start()), None)


def _mined(steps: RetrieverSteps) -> dict[str, float]:
  """In-batch negatives, and negatives from the run's index."""
  name = "judged_mined"
  return _trained(steps, name, run(steps.start()), steps.builder(name))


def _reranked(steps: RetrieverSteps) -> dict[str, float]:
  """The inverse-cloze retriever, reranked by a cross-encoder."""
  made = _cross_encoder(steps)
  seconds = run_in_cpu_seconds(made)
  found = steps.metrics(made, 0, "eval_reranked")
  return {**found, "cpu_seconds": seconds}


def _distilled(steps: RetrieverSteps) -> dict[str, float]:
  """A retriever that also learns the scores of this cross-encoder."""
  start, name = run(_cross_encoder(steps)), "distillation"
  return _trained(steps, name, start, steps.builder(name))


def _cross_encoder(steps: RetrieverSteps) -> Step:
  name = "reranking"
  return steps.judged(name, run(steps.start()), steps.first_snapshot(name))


def _trained(
  steps: RetrieverSteps, name: str, start: Step, builder: Command | None
) -> dict[str, float]:
  made = steps.judged(name, start, builder)
  seconds = run_in_cpu_seconds(made)
  last = made.command.build().num_steps
  found = steps.metrics(made, last, "eval_retrieval")
  return {**found, "cpu_seconds": seconds}


_SYSTEMS: Mapping[
  str, tuple[str, Callable[[RetrieverSteps], dict[str, float]]]
] = {
  "start": ("inverse cloze", _start),
  "judged": ("judged passages, negatives of the batch", _judged),
  "judged_mined": ("the same, with mined negatives", _mined),
  "reranked": ("inverse cloze, and a cross-encoder", _reranked),
  "distilled": ("distilled from this cross-encoder", _distilled),
}


COMPARISON = Comparison.of_steps(
  "retrievers",
  _SYSTEMS,
  (*_METRICS, "cpu_seconds"),
  demo_worlds,
  RetrieverSteps,
)
