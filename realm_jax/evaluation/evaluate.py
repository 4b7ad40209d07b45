"""Evaluates a run, or each of its checkpoints as they appear.

Following a run shares files with the trainer and nothing else, as the index
builder does. Either may be killed and restarted; evaluations that are complete
are not repeated.
"""

import contextlib
import dataclasses
import functools
import json
import math
import threading
from collections.abc import Callable
from typing import Any

from absl import logging
from etils import epath

from realm_jax.checkpoints.best import BestCheckpoint, read_best, write_best
from realm_jax.checkpoints.store import CheckpointError, CheckpointStore
from realm_jax.console.sigterm import stop_on_sigterm
from realm_jax.evaluation.outputs import METRICS, Figures
from realm_jax.evaluation.run import RunConfig
from realm_jax.files.kept_configuration import run_directory
from realm_jax.files.object_store.store_access import (
  require_readable,
  require_writable,
)
from realm_jax.generations.manifest import GenerationError
from realm_jax.partitioning.agreement import Agreement
from realm_jax.settings import NonNegativeInt, PositiveFloat

_LOWER_IS_BETTER = frozenset({"loss", "perplexity", "perplexity_null"})
_REMINDER_SECONDS = 30.0


def evaluate(
  *,
  evaluation: Callable[..., Figures],
  model_dir: epath.PathLike,
  output_dir: epath.PathLike | None = None,
) -> Figures:
  """Runs one of this package's evaluations, whose arguments gin has bound.

  Args:
    evaluation: Evaluation that takes an `output_dir`.
    model_dir: MODEL_DIR of the run, or one of its checkpoints.
    output_dir: Directory of what it writes; None is MODEL_DIR/eval.
  """
  return evaluation(output_dir=output_dir or default_output_dir(model_dir))


def default_output_dir(model_dir: epath.PathLike) -> epath.Path:
  """Returns where the evaluation of a run, or of a checkpoint, writes to."""
  return run_directory(model_dir) / "eval"


def follow(
  *,
  evaluation: Callable[..., Figures],
  config: RunConfig,
  best_metric: str,
  output_dir: epath.PathLike | None = None,
  follow_until_step: NonNegativeInt | None = None,
  poll_seconds: PositiveFloat = 5.0,
) -> Figures | None:
  """Evaluates each new checkpoint of a run, until SIGTERM.

  A checkpoint that the trainer has removed before its turn is left out. The
  trainer keeps the one that is being evaluated and the best one so far.

  Args:
    evaluation: Evaluation that takes a `config` and an `output_dir`.
    config: Run to follow; its `checkpoint_step` is replaced.
    best_metric: Metric of the best checkpoint. The highest value is the best,
      but for losses and perplexities.
    output_dir: Directory in which each checkpoint's evaluation gets a folder,
      named by its step; None is MODEL_DIR/eval.
    follow_until_step: Step of the last checkpoint to evaluate, after which it
      returns.
    poll_seconds: Time between two looks for checkpoints.

  Returns:
    The figures of the best checkpoint, if there is one.

  Raises:
    ValueError: The evaluation has no such metric, or fails.
  """
  output_dir = output_dir or default_output_dir(config.model_dir)
  with (
    stop_on_sigterm() as own_stop,
    contextlib.closing(CheckpointStore(config.model_dir)) as checkpoints,
  ):
    require_readable(config.model_dir)
    require_writable(config.model_dir, output_dir)
    stop = Agreement("end of following").stop_event(own_stop)
    follower = _Follower(
      checkpoints,
      epath.Path(config.model_dir),
      epath.Path(output_dir),
      best_metric=best_metric,
      until_step=follow_until_step,
      poll_seconds=poll_seconds,
      stop=stop,
    )
    agreement = Agreement("followed run", while_waiting=stop.is_set)
    while (
      step := agreement.on_process_0("next", follower.next_step)
    ) is not None:
      try:
        evaluation(
          config=dataclasses.replace(config, checkpoint_step=step),
          output_dir=follower.folder(step),
        )
      except (CheckpointError, GenerationError) as error:
        # Several processes may not all have failed; then all end.
        if agreement.count > 1 or not follower.may_try_later(step, error):
          raise
        continue
      agreement.on_process_0("best", functools.partial(follower.record, step))
    return agreement.on_process_0("result", follower.best_figures)


class _Follower:
  """Chooses checkpoints, and records which is the best; for process 0."""

  def __init__(
    self,
    checkpoints: CheckpointStore,
    model_dir: epath.Path,
    output_dir: epath.Path,
    *,
    best_metric: str,
    until_step: int | None,
    poll_seconds: float,
    stop: threading.Event,
  ):
    self._checkpoints = checkpoints
    self._model_dir, self._output_dir = model_dir, output_dir
    self._metric, self._until_step = best_metric, until_step
    self._poll_seconds, self._stop = poll_seconds, stop
    self._best = read_best(model_dir)

  def folder(self, step: int) -> epath.Path:
    """Returns the directory of a checkpoint's evaluation."""
    return self._output_dir / str(step)

  def next_step(self) -> int | None:
    """Waits for a checkpoint to evaluate; returns None at the end."""
    self._write(self._recorded())
    while not self._stop.is_set():
      for step in self._steps_to_evaluate():
        self._claim(step)
        # The trainer may have removed it before it knew.
        if step in self._checkpoints.steps():
          return step
      if self._until_step is not None and self._is_done(self._until_step):
        break
      self._stop.wait(self._poll_seconds)
    self._claim(None)
    return None

  def record(self, step: int) -> None:
    """Compares a checkpoint that was evaluated with the best one so far."""
    best = self._recorded()
    self._write(dataclasses.replace(best, evaluating=None))
    logging.info(
      "checkpoint %d: %s %.4f; the best is %s, %s",
      *(step, self._metric, self._value_of(step), best.step, best.value),
    )

  def best_figures(self) -> Figures | None:
    """Returns what was measured of the best checkpoint, if there is one."""
    if self._best is None or self._best.step is None:
      return None
    return self._read_figures(self._best.step)

  def may_try_later(self, step: int, error: ValueError) -> bool:
    """Returns whether another try may succeed; waits for it, and says why.

    The checkpoint may be removed by now, or its generation not yet published.
    """
    if step not in self._checkpoints.steps():
      logging.warning("checkpoint %d is left out: it was removed", step)
      return True
    if isinstance(error, GenerationError):
      logging.log_every_n_seconds(
        logging.WARNING,
        "checkpoint %d waits for its generation: %s",
        _REMINDER_SECONDS,
        *(step, error),
      )
      self._stop.wait(self._poll_seconds)
      return True
    return False

  def _steps_to_evaluate(self) -> list[int]:
    last = math.inf if self._until_step is None else self._until_step
    return [
      step
      for step in self._checkpoints.steps()
      if step <= last and not self._is_done(step)
    ]

  def _is_done(self, step: int) -> bool:
    return (self.folder(step) / METRICS).exists()

  def _recorded(self) -> BestCheckpoint:
    """Returns the best of the checkpoints that were evaluated by now."""
    best = self._best
    if best is None or best.metric != self._metric:
      best = BestCheckpoint(self._metric)
    for step in filter(self._is_done, self._checkpoints.steps()):
      best = self._better(best, step, self._value_of(step))
    return best

  def _better(
    self, best: BestCheckpoint, step: int, value: float
  ) -> BestCheckpoint:
    sign = -1 if self._metric in _LOWER_IS_BETTER else 1
    if best.value is not None and not sign * value > sign * best.value:
      return best
    return dataclasses.replace(best, step=step, value=value)

  def _value_of(self, step: int) -> float:
    figures = self._read_figures(step)
    value = figures.get(self._metric)
    if not isinstance(value, float):
      known = (n for n, v in figures.items() if isinstance(v, float))
      raise ValueError(
        f"BEST_METRIC={self._metric!r} is no metric of this evaluation; it has "
        f"{', '.join(known)}"
      )
    return value

  def _read_figures(self, step: int) -> dict[str, Any]:
    return json.loads((self.folder(step) / METRICS).read_text())

  def _claim(self, step: int | None) -> None:
    """Lets the trainer keep a checkpoint for as long as it is evaluated."""
    assert self._best is not None
    self._write(dataclasses.replace(self._best, evaluating=step))

  def _write(self, best: BestCheckpoint) -> None:
    """Replaces what the trainer reads; without a checkpoint there is none."""
    if best != self._best and (best.kept or self._best is not None):
      write_best(self._model_dir, best)
    self._best = best
