"""Following a run: which checkpoints are evaluated, and which is the best."""

import contextlib
import json
import threading

import numpy as np
import pytest

from realm_jax.checkpoints.store import (
  BestCheckpoint,
  CheckpointError,
  CheckpointStore,
  locate,
  read_best,
)
from realm_jax.evaluation.config import RunConfig
from realm_jax.evaluation.evaluate import follow
from realm_jax.snapshots.manifest import SnapshotError
from realm_jax.storage.json_files import write_json
from tests import tiny_world

pytestmark = pytest.mark.slow

_EXACT_MATCH = {0: 0.1, 1: 0.3, 2: 0.2, 3: 0.3, 4: 0.4}


class Run:
  """A run whose checkpoints are saved one by one, of which one is kept."""

  def __init__(self, folder):
    self.model_dir, self.output_dir = folder / "run", folder / "evaluations"
    self.trainer = CheckpointStore(self.model_dir, keep=1)
    self.evaluated: list[int] = []

  def save(self, step: int) -> None:
    self.trainer.save(step, {"retriever": {"scale": np.float32(step)}})
    self.trainer.wait()

  def evaluate(self, *, config, output_dir):
    """An evaluation whose metrics are known."""
    step = config.checkpoint_step
    self.evaluated.append(step)
    metrics = {"exact_match": _EXACT_MATCH[step], "loss": -_EXACT_MATCH[step]}
    write_json(output_dir / "metrics.json", metrics)
    return metrics

  def follow(self, until: int, *, metric="exact_match", evaluation=None):
    config = RunConfig(
      model_dir=self.model_dir,
      corpus_dir="corpus",
      retriever=tiny_world.RETRIEVER,
    )
    return follow(
      evaluation=evaluation or self.evaluate,
      config=config,
      output_dir=self.output_dir,
      best_metric=metric,
      follow_until_step=until,
      poll_seconds=0.05,
    )


@pytest.fixture
def run(tmp_path):
  made = Run(tmp_path)
  yield made
  made.trainer.close()


def test_each_checkpoint_is_evaluated_and_the_best_one_kept(run):
  run.save(0)
  assert run.follow(0) == {"exact_match": 0.1, "loss": -0.1}
  for step in (1, 2, 3):
    run.save(step)
    run.follow(step)
  # The first of two equals is the best; the trainer keeps it and its newest.
  assert read_best(run.model_dir) == BestCheckpoint("exact_match", 1, 0.3)
  assert run.trainer.steps() == [0, 1, 3]
  run.save(4)
  assert run.follow(4)["exact_match"] == 0.4
  # Started again, nothing is evaluated twice.
  assert run.follow(4, metric="loss")["loss"] == -0.4
  assert run.evaluated == [0, 1, 2, 3, 4]
  # Of another metric: the lowest loss is the best.
  assert read_best(run.model_dir) == BestCheckpoint("loss", 4, -0.4)
  with pytest.raises(ValueError, match=r"'recall'.*has exact_match, loss"):
    run.follow(4, metric="recall")
  store, step = locate(run.model_dir / "checkpoints" / "best")
  with_best = store.restore(step, items=("retriever",))
  store.close()
  assert (step, float(with_best["retriever"]["scale"])) == (4, 4.0)


def test_it_waits_for_checkpoints_and_keeps_what_it_evaluates(run):
  run.save(1)
  evaluating, may_end = threading.Event(), threading.Event()

  def slow(*, config, output_dir):
    evaluating.set()
    may_end.wait(60)
    return run.evaluate(config=config, output_dir=output_dir)

  thread = threading.Thread(
    target=run.follow, args=(3,), kwargs={"evaluation": slow}
  )
  thread.start()
  assert evaluating.wait(60)
  # Meanwhile the trainer goes on: it removes 2, and not 1.
  for step in (2, 3):
    run.save(step)
  assert run.trainer.steps() == [1, 3]
  may_end.set()
  thread.join(60)
  assert run.evaluated == [1, 3]
  assert read_best(run.model_dir) == BestCheckpoint("exact_match", 1, 0.3)


def test_it_ends_when_the_last_checkpoint_was_removed_before_its_turn(run):
  for step in (1, 2, 3):
    run.save(step)
  assert run.trainer.steps() == [3]
  assert run.follow(2) is None
  assert run.evaluated == []


def test_a_snapshot_that_is_not_published_yet_is_waited_for(run):
  run.save(0)
  tries = []

  def at_the_third(*, config, output_dir):
    tries.append(1)
    if len(tries) < 3:
      raise SnapshotError("there is no snapshot 0 yet")
    return run.evaluate(config=config, output_dir=output_dir)

  run.follow(0, evaluation=at_the_third)
  assert (len(tries), run.evaluated) == (3, [0])


def test_a_damaged_record_of_the_best_checkpoint(run):
  best = run.model_dir / "checkpoints" / "best"
  run.save(1)
  # The trainer removes nothing, and readers are told.
  (run.model_dir / "best.json").write_text(json.dumps({"steps": 1}))
  with pytest.raises(CheckpointError, match=r"best.json is not what"):
    locate(best)
  run.save(2)
  assert run.trainer.steps() == [1, 2]


# Of metrics 0.3, 0.1 and 0.2 at the steps 1 to 3.
_BEST_STEPS = {
  **dict.fromkeys(("loss", "reader_loss", "perplexity_null"), 2),
  **dict.fromkeys(("mrr", "log_likelihood_null", "retrieval_utility"), 1),
}


def test_the_best_checkpoint_has_the_lowest_cost_or_the_highest_gain(run):
  with contextlib.closing(CheckpointStore(run.model_dir)) as store:
    for step, value in ((1, 0.3), (2, 0.1), (3, 0.2)):
      store.save(step, {"retriever": {"scale": np.float32(step)}})
      metrics = dict.fromkeys(_BEST_STEPS, value)
      write_json(run.output_dir / str(step) / "metrics.json", metrics)
    store.wait()
  for metric, step in _BEST_STEPS.items():
    run.follow(3, metric=metric)
    best = read_best(run.model_dir)
    assert best is not None and best.step == step, metric
