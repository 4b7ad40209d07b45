"""Metrics of a run: rows and writers, the log, and checks for NaNs.

Metrics are fetched two steps late, so that the host never waits for the step
that the devices compute.
"""

import collections
import datetime
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from absl import logging
from etils import epath

from realm_jax.errors import RealmError
from realm_jax.storage.access import explained
from realm_jax.storage.paths import is_remote
from realm_jax.training.goodput import Goodput
from realm_jax.training.metric_rows import MetricRows, read_rows
from realm_jax.training.metric_writers import Tracker, open_writers

_STEPS_LATE = 2
_LOG_LINE_SECONDS = 15.0
# A write takes a good part of a millisecond, and steps may take milliseconds.
_FLUSH_SECONDS = 1.0
# Metrics that must be finite. A finite loss does not imply finite parameters
# after the step, and a checkpoint of non-finite parameters would be useless.
_FINITE = ("loss", "gradient_norm", "parameter_norm")
_SHOWN = ("loss", "accuracy", "retrieval_utility", "recall", "span_accuracy")
# Metrics that reveal a collapse of the retriever. Recall and entropy count only
# from the values here on: with one candidate besides the null block, for
# example, the entropy is always near 0.
_UTILITY = "retrieval_utility"
_MIN_BEST = {"recall": 0.02, "candidate_entropy": 0.1}
# Utility, in nats per token, above which candidates help.
_USEFUL = 0.05
# Share of its best value below which recall or entropy has fallen.
_FALLEN = 0.6
# Weight of a step in the exponential means.
_SMOOTHING = 0.05
# Number of steps before the first warning, and between two.
_PATIENCE_STEPS = 50


class NonFiniteLossError(RealmError):
  """The loss, its gradient or the parameters are not finite."""


class MetricsLog:
  """Writes the metrics of every step, in order, two steps late.

  They go to the file of rows and to writers such as TensorBoard's. A failure to
  write, such as on a full disk, is logged once and retried with the next rows:
  metrics never end a run.

  Args:
    model_dir: Directory of the files.
    start_step: Number of completed steps; `MetricRows` removes later rows.
    writers: Names or settings of writers (`metric_writers.py`).
    began: Time (`time.time`) from which a new run's goodput counts.
    writes: Whether this process writes files and shows progress. All processes
      check for NaNs, so that a run ends everywhere.
  """

  def __init__(
    self,
    model_dir: epath.PathLike,
    *,
    start_step: int,
    num_steps: int,
    examples_per_step: int,
    freeze_retriever_steps: int = 0,
    writers: Sequence[str | Tracker] = ("tensorboard",),
    began: float | None = None,
    writes: bool = True,
  ):
    # Steps whose metrics the devices may still be computing.
    self._pending: collections.deque[
      tuple[int, Mapping[str, jax.Array], Mapping[str, Any]]
    ] = collections.deque()
    self._model_dir = epath.Path(model_dir)
    self._num_steps = num_steps
    self._examples_per_step = examples_per_step
    self._monitor = _CollapseMonitor(freeze_retriever_steps)
    self._writes = writes
    self._goodput = Goodput(
      read_rows(model_dir) if writes else (),
      start_step=start_step,
      began=time.time() if began is None else began,
    )
    self._rows = MetricRows(model_dir, start_step=start_step)
    self._writers = open_writers(writers, model_dir) if writes else []
    # Last logged step, and the time of logging.
    self._shown: tuple[int, float] | None = None
    self._has_warned = False
    self._step_began = time.perf_counter()
    self._line_at = time.monotonic() + _LOG_LINE_SECONDS
    self._flush_files()

  def push(
    self,
    step: int,
    on_devices: Mapping[str, jax.Array],
    on_host: Mapping[str, float],
  ) -> None:
    """Adds the metrics after `step` steps, and writes an earlier step's.

    Raises:
      NonFiniteLossError: The result of the earlier step is not finite.
    """
    now = time.perf_counter()
    seconds, self._step_began = now - self._step_began, now
    timing = {
      "step_seconds": seconds,
      "examples_per_second": self._examples_per_step / seconds,
      **self._goodput.advance(),
    }
    self._pending.append((step, on_devices, {**on_host, **timing}))
    if len(self._pending) > _STEPS_LATE:
      self._take_oldest()

  def flush(self) -> None:
    """Waits for the devices and writes everything.

    Raises:
      NonFiniteLossError: The result of a step is not finite.
    """
    while self._pending:
      self._take_oldest()
    self._flush_files()

  def close(self) -> None:
    """Writes metrics that have arrived; pending ones are dropped."""
    self._flush_files()
    for writer in self._writers:
      writer.close()
    if self._writes:
      logging.info("%s", self._goodput)

  def _flush_files(self) -> None:
    if not self._writes:
      return
    self._flush_at = time.monotonic() + _FLUSH_SECONDS
    for writer in (self._rows, *self._writers):
      try:
        writer.flush()
      except Exception as error:
        message = explained(error)
        if message is None and not isinstance(error, OSError):
          raise
        if not self._has_warned:
          self._has_warned = True
          logging.warning(
            "metrics cannot be written to %s (%s); the run goes on, and tries "
            "again",
            self._model_dir,
            message or error,
          )

  def _take_oldest(self) -> None:
    step, on_devices, on_host = self._pending.popleft()
    metrics = {name: float(x) for name, x in jax.device_get(on_devices).items()}
    for name in _FINITE:
      if not math.isfinite(metrics.get(name, 0.0)):
        raise NonFiniteLossError(f"{name} is {metrics[name]} at step {step}")
    metrics |= on_host
    if warning := self._monitor.update(step, metrics):
      logging.warning("step %d: %s", step, warning)
    if not self._writes:
      return
    self._rows.add_row({"step": step, **metrics})
    scalars = {n: x for n, x in metrics.items() if isinstance(x, float)}
    for writer in self._writers:
      writer.write_scalars(step, scalars)
    # Files on an object store are flushed with each checkpoint.
    if not is_remote(self._model_dir) and time.monotonic() >= self._flush_at:
      self._flush_files()
    # Steps per second are counted from the first step on, after compilation.
    self._shown = self._shown or (step, time.monotonic())
    if time.monotonic() >= self._line_at or step == self._num_steps:
      self._log(step, metrics)

  def _log(self, step: int, metrics: Mapping[str, float]) -> None:
    shown = {name: f"{metrics[name]:.3f}" for name in _SHOWN if name in metrics}
    shown["examples/s"] = f"{metrics['examples_per_second']:.0f}"
    if "staleness_steps" in metrics:
      shown["staleness"] = f"{metrics['staleness_steps']:.0f}"
    now = time.monotonic()
    self._line_at = now + _LOG_LINE_SECONDS
    text = ", ".join(f"{name} {value}" for name, value in shown.items())
    left, (last, since) = self._num_steps - step, self._shown or (step, now)
    if left and step > last:
      seconds = round(left * (now - since) / (step - last))
      text += f", {datetime.timedelta(seconds=seconds)} left"
    self._shown = step, now
    logging.info("step %d of %d: %s", step, self._num_steps, text)


class _CollapseMonitor:
  """Warns if joint training destroys the retriever.

  A reader that cannot use its candidates sends noise to the retriever: the
  retrieval utility stays near zero while recall falls from its best, or
  p(z|x) concentrates on few candidates. More steps then make it worse. The
  first steps, which do not train the retriever, are ignored.
  """

  def __init__(self, freeze_retriever_steps: int):
    self._ignored = freeze_retriever_steps
    # Exponential moving averages of the metrics, and their best values.
    self._means: dict[str, float] = {}
    self._best: dict[str, float] = {}
    self._seen = 0
    self._quiet_until = _PATIENCE_STEPS

  def update(self, step: int, metrics: Mapping[str, float]) -> str | None:
    """Adds the metrics after `step` steps; returns a warning if one is due."""
    names = (_UTILITY, *_MIN_BEST)
    if step <= self._ignored or not metrics.keys() >= {*names}:
      return None
    self._seen += 1
    for name in names:
      mean = self._means.setdefault(name, metrics[name])
      self._means[name] = mean + _SMOOTHING * (metrics[name] - mean)
      if self._seen >= _PATIENCE_STEPS // 2:
        mean = self._means[name]
        self._best[name] = max(self._best.get(name, mean), mean)
    utility = self._means[_UTILITY]
    if utility >= _USEFUL or self._seen < self._quiet_until:
      return None
    for name, lowest in _MIN_BEST.items():
      best, mean = self._best[name], self._means[name]
      if best > lowest and mean < _FALLEN * best:
        self._quiet_until = self._seen + _PATIENCE_STEPS
        return (
          f"the retriever is collapsing: retrieval utility is {utility:.3f} "
          f"while {name} fell from {best:.3f} to {mean:.3f}; freeze the "
          "retriever for more steps (FREEZE_RETRIEVER_STEPS), or lower its "
          "learning rate (RETRIEVER_RATE_SCALE), until the reader gains from "
          "its candidates"
        )
    return None
