"""A run's metrics: metrics.jsonl, TensorBoard, the progress bar, and NaNs.

Metrics are fetched two steps late, so that the host never waits for the step
that the device works on.
"""

import collections
import json
import math
import sys
import time
from collections.abc import Mapping
from typing import Any

import jax
from absl import logging
from clu import metric_writers
from etils import epath
from tqdm import tqdm

_STEPS_LATE = 2
_LOG_LINE_SECONDS = 30.0
# The loss of a step says nothing of the parameters that it leaves; a
# checkpoint of those would be lost to the next step.
_FINITE = ("loss", "gradient_norm", "parameter_norm")
_SHOWN = ("loss", "accuracy", "retrieval_utility", "recall", "span_accuracy")


class NonFiniteLossError(ValueError):
  """The loss, its gradient or the parameters are no numbers any more."""


class MetricsLog:
  """Writes the metrics of every step, in order, a little late.

  Args:
    model_dir: where metrics.jsonl and the events go.
    start_step: rows of later steps are of a run that was killed after its
      last checkpoint; they are removed, as those steps will be done again.
    num_steps: of the run, for the progress bar.
    examples_per_step: the global batch.
    is_writer: whether this process writes; only one of a run does.
  """

  def __init__(
    self,
    model_dir: epath.PathLike,
    *,
    start_step: int,
    num_steps: int,
    examples_per_step: int,
    is_writer: bool = True,
  ):
    self._queue: collections.deque[tuple[int, Any, dict[str, float]]] = (
      collections.deque()
    )
    self._examples_per_step = examples_per_step
    self._step_began = time.perf_counter()
    self._line_at = time.monotonic() + _LOG_LINE_SECONDS
    self._writer = self._file = self._bar = None
    if is_writer:
      path = epath.Path(model_dir) / "metrics.jsonl"
      # A run that is killed here must not lose its earlier rows.
      kept = path.with_name(".metrics.jsonl.kept")
      kept.write_text(_rows_until(path, start_step))
      kept.replace(path)
      self._file = path.open("a")
      self._writer = metric_writers.SummaryWriter(str(model_dir))
      if sys.stderr.isatty():
        self._bar = tqdm(total=num_steps, initial=start_step, unit="step")
    self._num_steps = num_steps
    self.last: dict[str, float] = {}

  def push(
    self, step: int, device: Mapping[str, jax.Array], host: Mapping[str, float]
  ) -> dict[str, float] | None:
    """Takes the metrics of step `step` (1 is the first).

    Returns:
      The metrics of the step that is now known, or None.

    Raises:
      NonFiniteLossError: what that step made is not finite.
    """
    now = time.perf_counter()
    seconds, self._step_began = now - self._step_began, now
    timing = {
      "step_seconds": seconds,
      "examples_per_second": self._examples_per_step / seconds,
    }
    self._queue.append((step, device, {**host, **timing}))
    if len(self._queue) > _STEPS_LATE:
      return self._write_oldest()
    return None

  def flush(self) -> None:
    """Waits for the device and writes everything; raises as `push`."""
    while self._queue:
      self._write_oldest()
    if self._file is not None and self._writer is not None:
      self._file.flush()
      self._writer.flush()

  def close(self) -> None:
    """Closes the files; what is still queued is dropped."""
    if self._file is not None and self._writer is not None:
      self._file.close()
      self._writer.close()
    if self._bar is not None:
      self._bar.close()

  def _write_oldest(self) -> dict[str, float]:
    step, device, host = self._queue.popleft()
    metrics = {name: float(x) for name, x in jax.device_get(device).items()}
    for name in _FINITE:
      if not math.isfinite(metrics.get(name, 0.0)):
        raise NonFiniteLossError(f"{name} is {metrics[name]} at step {step}")
    metrics |= host
    self.last = metrics
    if self._file is not None and self._writer is not None:
      self._file.write(json.dumps({"step": step, **metrics}) + "\n")
      self._writer.write_scalars(step, metrics)
      self._show(step, metrics)
    return metrics

  def _show(self, step: int, metrics: Mapping[str, float]) -> None:
    shown = {name: f"{metrics[name]:.3f}" for name in _SHOWN if name in metrics}
    shown["examples/s"] = f"{metrics['examples_per_second']:.0f}"
    if "staleness_steps" in metrics:
      shown["staleness"] = f"{metrics['staleness_steps']:.0f}"
    if self._bar is not None:
      self._bar.update(step - self._bar.n)
      self._bar.set_postfix(shown, refresh=False)
    elif time.monotonic() >= self._line_at or step == self._num_steps:
      self._line_at = time.monotonic() + _LOG_LINE_SECONDS
      text = ", ".join(f"{name} {value}" for name, value in shown.items())
      logging.info("step %d of %d: %s", step, self._num_steps, text)


def _rows_until(path: epath.Path, step: int) -> str:
  """The whole rows of steps up to `step`; a row cut by a kill is dropped."""
  if not path.exists():
    return ""
  kept = []
  for line in path.read_text().splitlines():
    try:
      row = json.loads(line)
    except json.JSONDecodeError:
      break
    if row["step"] > step:
      break
    kept.append(line + "\n")
  return "".join(kept)
