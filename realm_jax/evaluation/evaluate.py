"""Evaluates a run, or each of its checkpoints as they appear.

An evaluation that follows a run shares only files with the trainer, like the
index builder. Either may be killed and restarted; complete evaluations are not
repeated.
"""

import contextlib
import dataclasses
import functools
import json
import math
from collections.abc import Callable

from absl import logging
from etils import epath

from realm_jax.checkpoints.store import (
  BestCheckpoint,
  CheckpointError,
  CheckpointStore,
  read_best,
  write_best,
)
from realm_jax.configuration.kept import run_directory
from realm_jax.console import stop_on_signal
from realm_jax.errors import RealmError
from realm_jax.evaluation.config import RunConfig
from realm_jax.evaluation.outputs import METRICS, Metrics
from realm_jax.partitioning.agreement import Agreement
from realm_jax.settings import NonNegativeInt, PositiveFloat
from realm_jax.snapshots.manifest import SnapshotError
from realm_jax.storage.access import require_readable, require_writable
from realm_jax.storage.paths import list_names

# Default output folder in MODEL_DIR.
_FOLDER = "eval"
_REMINDER_SECONDS = 30.0


def evaluate(
  *,
  evaluation: Callable[..., Metrics],
  model_dir: epath.PathLike,
  output_dir: epath.PathLike | None = None,
) -> Metrics:
  """Runs an evaluation of this package, with arguments bound in gin.

  Args:
    evaluation: Evaluation that takes an `output_dir`.
    model_dir: MODEL_DIR of the run, or one of its checkpoints.
    output_dir: Output directory; None is MODEL_DIR/eval.
  """
  return evaluation(output_dir=output_dir or run_directory(model_dir) / _FOLDER)


def follow(
  *,
  evaluation: Callable[..., Metrics],
  config: RunConfig,
  best_metric: str,
  output_dir: epath.PathLike | None = None,
  follow_until_step: NonNegativeInt | None = None,
  poll_seconds: PositiveFloat = 5.0,
) -> Metrics | None:
  """Evaluates each new checkpoint of a run, until SIGTERM or Ctrl-C.

  A checkpoint that the trainer removes before its turn is skipped. The trainer
  keeps the checkpoint that is being evaluated and the best one so far.

  Args:
    evaluation: Evaluation that takes a `config` and an `output_dir`.
    config: Run to follow; its `checkpoint_step` is replaced.
    best_metric: Metric that determines the best checkpoint. Higher is better,
      except for losses and perplexities.
    output_dir: Directory with a folder, named by step, for each checkpoint's
      evaluation; None is MODEL_DIR/eval.
    follow_until_step: Step of the last checkpoint to evaluate. Following ends
      with it, or once the run has a later checkpoint.
    poll_seconds: Polling interval for checkpoints.

  Returns:
    The metrics of the best checkpoint, if there is one.

  Raises:
    ValueError: The evaluation has no such metric, or fails.

  Example:
    >>> from realm_jax.evaluation.open_qa import evaluate_open_qa
    >>> from realm_jax.inputs.config import DataConfig
    >>> data = DataConfig(
    ...   task="open_qa", corpus_dir="corpus", split="test", batch_size=8,
    ...   question_files={"test": "questions.jsonl"},
    ...   query_length=16, block_length=40,
    ... )
    >>> best = follow(
    ...   evaluation=functools.partial(evaluate_open_qa, data=data),
    ...   config=run.config, best_metric="f1", follow_until_step=0,
    ... )
    >>> best["checkpoint"], best["num_questions"]
    (0, 11)
  """
  model_dir = epath.Path(config.model_dir)
  folder = epath.Path(output_dir or run_directory(model_dir) / _FOLDER)
  with (
    stop_on_signal() as own_stop,
    contextlib.closing(CheckpointStore(model_dir)) as checkpoints,
  ):
    require_readable(model_dir)
    require_writable(model_dir, folder)
    stop = Agreement("end of following").stop_event(own_stop)
    agreement = Agreement("followed run", while_waiting=stop.is_set)
    last_step = math.inf if follow_until_step is None else follow_until_step
    record = functools.partial(
      _record_best, model_dir, checkpoints, folder, best_metric
    )

    def next_step() -> int | None:
      """Waits for a checkpoint to evaluate; returns None at the end."""
      while not stop.is_set():
        done, steps = _evaluated(folder), checkpoints.steps()
        for step in steps:
          if step <= last_step and step not in done:
            record(evaluating=step)
            # The trainer may have removed it before it read the record.
            if step in checkpoints.steps():
              return step
        # The last step may have no checkpoint, or none any more.
        if max([*done, *steps], default=-1) >= last_step:
          break
        stop.wait(poll_seconds)
      return None

    def best_metrics() -> Metrics | None:
      best = record()
      return None if best.step is None else _metrics(folder, best.step)

    best_so_far = functools.partial(
      agreement.on_process_0, "best so far", best_metrics
    )
    # Checks that the metric exists before anything is evaluated.
    best_so_far()
    while (step := agreement.on_process_0("next", next_step)) is not None:
      try:
        metrics = evaluation(
          config=dataclasses.replace(config, checkpoint_step=step),
          output_dir=folder / str(step),
        )
      except (CheckpointError, SnapshotError) as error:
        # Other processes may not have failed, so all end.
        if agreement.count > 1:
          raise
        if step not in checkpoints.steps():
          logging.warning("checkpoint %d is left out: it was removed", step)
        elif isinstance(error, SnapshotError):
          # The snapshot may not be published yet.
          logging.log_every_n_seconds(
            logging.WARNING,
            "checkpoint %d waits for its snapshot: %s",
            _REMINDER_SECONDS,
            *(step, error),
          )
          stop.wait(poll_seconds)
        else:
          raise
      else:
        value = metrics.get(best_metric)
        logging.info("checkpoint %d: %s %s", step, best_metric, value)
        best_so_far()
    return best_so_far()


def _evaluated(folder: epath.Path) -> list[int]:
  """Returns the evaluated steps; their checkpoints may be gone."""
  steps = sorted(int(s) for s in list_names(folder) if s.isdigit())
  return [s for s in steps if (folder / str(s) / METRICS).exists()]


def _record_best(
  model_dir: epath.Path,
  checkpoints: CheckpointStore,
  folder: epath.Path,
  metric: str,
  *,
  evaluating: int | None = None,
) -> BestCheckpoint:
  """Records the best checkpoint so far, and returns the record.

  The trainer keeps this checkpoint, and the one that is being evaluated.
  """
  before = best = read_best(model_dir)
  if best is None or best.metric != metric:
    best = BestCheckpoint(metric)
  # Lower losses and perplexities, such as `perplexity_null`, are better.
  is_cost = metric.endswith("loss") or metric.startswith("perplexity")
  sign = -1 if is_cost else 1
  present = checkpoints.steps()
  for step in (step for step in _evaluated(folder) if step in present):
    metrics = _metrics(folder, step)
    value = metrics.get(metric)
    if not isinstance(value, float):
      known = (name for name, v in metrics.items() if isinstance(v, float))
      raise RealmError(
        f"BEST_METRIC={metric!r} is no metric of this evaluation; it has "
        f"{', '.join(known)}"
      )
    if best.value is None or sign * value > sign * best.value:
      best = dataclasses.replace(best, step=step, value=value)
      logging.info("checkpoint %d is the best: %s %.4f", step, metric, value)
  best = dataclasses.replace(best, evaluating=evaluating)
  # Without a checkpoint there is nothing to record.
  if best != before and (best.kept or before is not None):
    write_best(model_dir, best)
  return best


def _metrics(folder: epath.Path, step: int) -> Metrics:
  return json.loads((folder / str(step) / METRICS).read_text())
