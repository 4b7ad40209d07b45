"""Systems that learn from judged passages, and the report."""

from collections.abc import Callable, Mapping

from experiments.comparing import Comparison, SystemSteps
from experiments.data import write_judged
from experiments.demo.stages import demo_worlds
from experiments.pipeline import Command, Step, run, run_in_cpu_seconds

_METRICS = ("recall_at_1", "recall_at_5", "mrr")


class RetrieverSteps(SystemSteps):
  """The steps of all systems, in the folder of a seed.

  They start from the run of `common_start`, which has the retriever of inverse
  cloze, and a reader of the blocks that this retriever finds.
  """

  gin_folders = "demo", "retrievers"

  def common_start(self) -> Step:
    """Trains the run from which all systems start, and returns it."""
    return run(self.start()[1])

  def judged(self, name: str, start: Step, builder: Command | None) -> Step:
    """Returns the training of the recipe `name` on the judged questions."""
    questions = self.folder / "judged.jsonl"
    write_judged(self.folder / "world", questions)
    return self.train(
      *(name, name, start, None, builder), TRAIN_QUESTIONS=str(questions)
    )

  def metrics(self, of: Step, step: int, recipe: str) -> dict[str, float]:
    """Evaluates a checkpoint's retrieval on the test questions."""
    name = f"{of.folder.name}-snapshots"
    evaluation = self.evaluate(
      *(of.folder.name, recipe, of),
      self.build_index(of, name, CHECKPOINT_STEP=step),
      QUESTIONS=self.path("world/questions-test.jsonl"),
    )
    metrics = run(evaluation).metrics()
    return {name: metrics[name] for name in _METRICS}


def _start(steps: RetrieverSteps) -> dict[str, float]:
  """Only inverse cloze."""
  return steps.metrics(steps.common_start(), 0, "eval_retrieval")


def _judged(steps: RetrieverSteps) -> dict[str, float]:
  """In-batch negatives."""
  return _trained(steps, "judged", steps.common_start(), None)


def _mined(steps: RetrieverSteps) -> dict[str, float]:
  """In-batch negatives, and negatives from the run's index."""
  name = "judged_mined"
  return _trained(steps, name, steps.common_start(), steps.builder(name))


def _reranked(steps: RetrieverSteps) -> dict[str, float]:
  """The inverse-cloze retriever, reranked by a cross-encoder."""
  reranker = _cross_encoder(steps)
  seconds = run_in_cpu_seconds(reranker)
  metrics = steps.metrics(reranker, 0, "eval_reranked")
  return {**metrics, "cpu_seconds": seconds}


def _distilled(steps: RetrieverSteps) -> dict[str, float]:
  """A retriever that also learns the scores of this cross-encoder."""
  start, name = run(_cross_encoder(steps)), "distillation"
  return _trained(steps, name, start, steps.builder(name))


def _cross_encoder(steps: RetrieverSteps) -> Step:
  name = "reranking"
  return steps.judged(name, steps.common_start(), steps.first_snapshot(name))


def _trained(
  steps: RetrieverSteps, name: str, start: Step, builder: Command | None
) -> dict[str, float]:
  training = steps.judged(name, start, builder)
  seconds = run_in_cpu_seconds(training)
  last = training.command.build().num_steps
  metrics = steps.metrics(training, last, "eval_retrieval")
  return {**metrics, "cpu_seconds": seconds}


_SYSTEMS: Mapping[
  str, tuple[str, Callable[[RetrieverSteps], dict[str, float]]]
] = {
  "start": ("inverse cloze", _start),
  "judged": ("judged passages, negatives of the batch", _judged),
  "judged_mined": ("the same, with mined negatives", _mined),
  "reranked": ("inverse cloze, and a cross-encoder", _reranked),
  "distilled": ("distilled from this cross-encoder", _distilled),
}


COMPARISON = Comparison(
  "retrievers",
  {name: title for name, (title, _) in _SYSTEMS.items()},
  (*_METRICS, "cpu_seconds"),
  demo_worlds,
  lambda name, seed: _SYSTEMS[name][1](
    RetrieverSteps(seed.folder, seed.number, seed.gin_files)
  ),
)
