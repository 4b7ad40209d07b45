"""What retrievers find before fine-tuning, along their training."""

import contextlib
import dataclasses
from collections.abc import Mapping

import numpy as np

from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.demo_run.commands import DemoCommands, Figures
from realm_jax.generations.store import GenerationStore

_RECALLS = ("recall_at_1", "recall_at_5", "mrr")
# Points of each curve.
_MAX_POINTS = 6


@dataclasses.dataclass(frozen=True)
class RecallPoint:
  """What one checkpoint's retriever finds.

  Attributes:
    step: Step of the checkpoint.
    recalls: `recall_at_1`, `recall_at_5` and `mrr`.
  """

  step: int
  recalls: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Baseline:
  """The inverse-cloze retriever that REALM is compared with.

  Attributes:
    run: Name of the run that it is the last retriever of.
    place: Its place, 0 or -1, in the curve of the continued run.
    validation: `recall_at_1` on validation questions, before and after the
      training was continued.
  """

  run: str
  place: int
  validation: tuple[float, float]

  def report(self) -> Figures:
    """Returns which one was chosen and why, for report.json."""
    before, after = self.validation
    return {
      "retriever": self.run,
      "validation_recall_at_1": {"started_from": before, "continued": after},
    }


def over_training(
  demo: DemoCommands, run: str, *, questions: str
) -> list[RecallPoint]:
  """Evaluates retrieval by a run's first and last checkpoint and some between.

  Only checkpoints of which a generation was built take part.

  Args:
    questions: Name of the world's file of questions, without its ending.
  """
  steps = _steps(demo, run)
  places = np.linspace(0, len(steps) - 1, min(_MAX_POINTS, len(steps)))
  return [
    RecallPoint(steps[place], _recalls(demo, run, steps[place], questions))
    for place in places.round().astype(int).tolist()
  ]


def better_baseline(demo: DemoCommands, continued: str) -> Baseline:
  """Chooses between the first and the last checkpoint of a run."""
  steps = _steps(demo, continued)
  before, after = (
    _recalls(demo, continued, step, "questions-validation")["recall_at_1"]
    for step in (steps[0], steps[-1])
  )
  validation = before, after
  if before > after:
    return Baseline("inverse_cloze", 0, validation)
  return Baseline(continued, -1, validation)


def folder(run: str, step: int, questions: str) -> str:
  """Returns the name of the evaluation of a run's checkpoint."""
  return f"{questions}/{run}/{step}"


def checkpoints(demo: DemoCommands, run: str) -> list[int]:
  """Returns the steps of a run's checkpoints, in order."""
  with contextlib.closing(CheckpointStore(demo.path(run))) as store:
    return sorted(store.steps())


def _steps(demo: DemoCommands, run: str) -> list[int]:
  """Returns the steps with a checkpoint and a generation, in order."""
  published = GenerationStore(demo.path(f"{run}/generations")).steps()
  return [step for step in checkpoints(demo, run) if step in published]


def _recalls(
  demo: DemoCommands, run: str, step: int, questions: str
) -> Mapping[str, float]:
  figures = demo.evaluate(
    folder(run, step, questions),
    "eval_retrieval",
    MODEL_DIR=demo.path(run),
    CHECKPOINT_STEP=step,
    QUESTIONS=demo.path(f"world/{questions}.jsonl"),
  )
  return {name: figures[name] for name in _RECALLS}
