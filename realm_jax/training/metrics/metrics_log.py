"""Metrics of a run: their files, TensorBoard, the progress bar, and NaNs.

Metrics are fetched two steps late, so that the host never waits for the step
that the devices compute.
"""

import collections
import contextlib
import functools
import math
import time
from collections.abc import Iterator, Mapping
from typing import NoReturn

import jax
from absl import logging
from etils import epath
from tqdm import tqdm

from realm_jax.files.metric_rows import RowWriter, open_rows
from realm_jax.files.object_store import store_access
from realm_jax.training.metrics.collapse import CollapseMonitor
from realm_jax.training.metrics.event_files import EventFiles

_STEPS_LATE = 2
_LOG_LINE_SECONDS = 30.0
# The loss of a step says nothing about the parameters after it. A checkpoint
# of parameters that are not finite would be useless.
_FINITE = ("loss", "gradient_norm", "parameter_norm")
_SHOWN = ("loss", "accuracy", "retrieval_utility", "recall", "span_accuracy")


class NonFiniteLossError(ValueError):
  """The loss, its gradient or the parameters are not finite."""


class MetricsLog:
  """Writes the metrics of every step, in order, two steps late.

  Args:
    model_dir: Directory of the rows and the TensorBoard events.
    start_step: Number of steps that are done. Rows of later steps are removed:
      they are from a run that was killed after its last checkpoint, and those
      steps are repeated.
    writes: Whether this process writes files and shows progress. All look for
      NaNs, so that a run ends everywhere.
  """

  def __init__(
    self,
    model_dir: epath.PathLike,
    *,
    start_step: int,
    num_steps: int,
    examples_per_step: int,
    monitor: CollapseMonitor,
    writes: bool = True,
  ):
    # Steps whose metrics the devices may still compute, and those of the host.
    self._pending: collections.deque[
      tuple[int, Mapping[str, jax.Array], Mapping[str, float]]
    ] = collections.deque()
    self._examples_per_step = examples_per_step
    self._monitor = monitor
    self._step_began = time.perf_counter()
    self._line_at = time.monotonic() + _LOG_LINE_SECONDS
    self._files = _Files(model_dir, start_step) if writes else None
    # Disabled by None where there is no terminal.
    self._bar: tqdm[NoReturn] = tqdm(
      total=num_steps,
      initial=start_step,
      unit="step",
      disable=None if writes else True,
    )
    self._num_steps = num_steps
    self.last: dict[str, float] = {}

  def push(
    self,
    step: int,
    on_devices: Mapping[str, jax.Array],
    on_host: Mapping[str, float],
  ) -> None:
    """Takes the metrics after `step` steps, and writes those of an earlier one.

    Raises:
      NonFiniteLossError: The result of that earlier step is not finite.
    """
    now = time.perf_counter()
    seconds, self._step_began = now - self._step_began, now
    timing = {
      "step_seconds": seconds,
      "examples_per_second": self._examples_per_step / seconds,
    }
    self._pending.append((step, on_devices, {**on_host, **timing}))
    if len(self._pending) > _STEPS_LATE:
      self._write_oldest()

  def flush(self) -> None:
    """Waits for the devices and writes everything.

    Raises:
      NonFiniteLossError: The result of a step is not finite.
    """
    while self._pending:
      self._write_oldest()
    if self._files is not None:
      self._files.flush()

  def close(self) -> None:
    """Closes the files; metrics that were not written are dropped."""
    self._bar.close()
    if self._files is not None:
      self._files.close()

  def _write_oldest(self) -> None:
    step, on_devices, on_host = self._pending.popleft()
    metrics = {name: float(x) for name, x in jax.device_get(on_devices).items()}
    for name in _FINITE:
      if not math.isfinite(metrics.get(name, 0.0)):
        raise NonFiniteLossError(f"{name} is {metrics[name]} at step {step}")
    metrics |= on_host
    self.last = metrics
    if warning := self._monitor.update(step, metrics):
      logging.warning("step %d: %s", step, warning)
    if self._files is not None:
      self._files.write(step, metrics)
      self._show(step, metrics)

  def _show(self, step: int, metrics: Mapping[str, float]) -> None:
    shown = {name: f"{metrics[name]:.3f}" for name in _SHOWN if name in metrics}
    shown["examples/s"] = f"{metrics['examples_per_second']:.0f}"
    if "staleness_steps" in metrics:
      shown["staleness"] = f"{metrics['staleness_steps']:.0f}"
    if not self._bar.disable:
      self._bar.update(step - self._bar.n)
      self._bar.set_postfix(shown, refresh=False)
    elif time.monotonic() >= self._line_at or step == self._num_steps:
      self._line_at = time.monotonic() + _LOG_LINE_SECONDS
      text = ", ".join(f"{name} {value}" for name, value in shown.items())
      logging.info("step %d of %d: %s", step, self._num_steps, text)


class _Files:
  """The rows and the TensorBoard events of a run.

  What cannot be written, such as on a full disk, is said once and tried again
  with the next flush: metrics do not end a run.
  """

  def __init__(self, model_dir: epath.PathLike, start_step: int):
    self._model_dir = model_dir
    self._open_rows = functools.partial(
      open_rows, model_dir, start_step=start_step
    )
    self._rows: RowWriter | None = None
    # Rows that came before their file could be opened.
    self._early: list[Mapping[str, float]] = []
    self._has_warned = False
    self._events = EventFiles(model_dir)
    with self._warnings():
      self._flush_rows()

  def write(self, step: int, metrics: Mapping[str, float]) -> None:
    row = {"step": step, **metrics}
    with self._warnings():
      if self._rows is None:
        self._early.append(row)
      else:
        self._rows.write(row)
    with self._warnings():
      self._events.write(step, metrics)

  def flush(self) -> None:
    with self._warnings():
      self._flush_rows()
    with self._warnings():
      self._events.flush()

  def _flush_rows(self) -> None:
    if self._rows is None:
      self._rows = self._open_rows()
    while self._early:
      self._rows.write(self._early.pop(0))
    self._rows.flush()

  def close(self) -> None:
    with self._warnings():
      self._events.close()
    with self._warnings():
      self._flush_rows()
    if self._rows is not None:
      with self._warnings():
        self._rows.close()

  @contextlib.contextmanager
  def _warnings(self) -> Iterator[None]:
    try:
      yield
    except Exception as error:
      message = store_access.explained(error)
      if message is None and not isinstance(error, OSError):
        raise
      if not self._has_warned:
        self._has_warned = True
        logging.warning(
          "metrics cannot be written to %s (%s); the run goes on, and tries "
          "again with each checkpoint",
          self._model_dir,
          message or error,
        )
