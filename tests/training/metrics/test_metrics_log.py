"""Metrics are written late and in order, and a NaN is found."""

import json

import jax.numpy as jnp
import pytest

from realm_jax.files.metric_rows import read_rows
from realm_jax.training.metrics.collapse import CollapseMonitor
from realm_jax.training.metrics.metrics_log import (
  MetricsLog,
  NonFiniteLossError,
)


def _open(model_dir, start_step=0, monitor=None):
  return MetricsLog(
    model_dir,
    start_step=start_step,
    num_steps=10,
    examples_per_step=8,
    monitor=monitor or CollapseMonitor(),
  )


def _metrics(loss, gradient_norm=1.0):
  return {
    "loss": jnp.float32(loss),
    "gradient_norm": jnp.float32(gradient_norm),
  }


def _rows(model_dir):
  text = (model_dir / "metrics.jsonl").read_text()
  return [json.loads(line) for line in text.splitlines()]


def test_rows_are_in_order_with_what_host_and_device_know(tmp_path):
  log = _open(tmp_path)
  for step in range(1, 6):
    log.push(step, _metrics(10.0 / step), {"recall": step / 10})
  log.flush()
  log.close()
  rows = _rows(tmp_path)
  assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
  assert [row["loss"] for row in rows] == pytest.approx([10, 5, 10 / 3, 2.5, 2])
  assert [row["recall"] for row in rows] == [0.1, 0.2, 0.3, 0.4, 0.5]
  for row in rows:
    # Eight examples a step.
    assert row["examples_per_second"] * row["step_seconds"] == pytest.approx(8)
  assert log.last["loss"] == 2.0


@pytest.mark.parametrize(
  ("bad", "message"),
  [
    (_metrics(float("nan")), "loss is nan at step 2"),
    (_metrics(1.0, float("inf")), "gradient_norm is inf at step 2"),
    (
      _metrics(1.0) | {"parameter_norm": jnp.float32("inf")},
      "parameter_norm is inf at step 2",
    ),
  ],
)
def test_a_nan_stops_the_run_within_two_steps(tmp_path, bad, message):
  log = _open(tmp_path)
  log.push(1, _metrics(1.0), {})
  log.push(2, bad, {})
  log.push(3, _metrics(1.0), {})
  with pytest.raises(NonFiniteLossError, match=message):
    log.push(4, _metrics(1.0), {})
  log.close()
  # What came before stays, and nothing of the bad step is written.
  assert [row["step"] for row in _rows(tmp_path)] == [1]


def test_nothing_is_saved_before_its_steps_are_known(tmp_path):
  # The loop flushes before it saves.
  log = _open(tmp_path)
  log.push(1, _metrics(float("nan")), {})
  with pytest.raises(NonFiniteLossError, match="step 1"):
    log.flush()
  log.close()


def test_tensorboard_events_are_written(tmp_path):
  log = _open(tmp_path)
  for step in (1, 2, 3):
    log.push(step, _metrics(1.0), {})
  log.flush()
  log.close()
  assert list(tmp_path.glob("events.out.tfevents.*"))


def test_a_store_has_rows_and_events_once_they_are_flushed(object_store):
  model_dir = object_store.path("metrics/run")
  log = _open(model_dir)
  for step in (1, 2, 3, 4):
    log.push(step, _metrics(1.0), {})
  assert object_store.names("metrics/run") == []
  log.flush()
  names = object_store.names("metrics/run")
  assert [row["step"] for row in read_rows(model_dir)] == [1, 2, 3, 4]
  log.push(5, _metrics(1.0), {})
  log.flush()
  log.close()
  names = object_store.names("metrics/run")
  events = [name for name in names if "/events.out.tfevents." in name]
  assert len(events) == 2
  assert len(read_rows(model_dir)) == 5
