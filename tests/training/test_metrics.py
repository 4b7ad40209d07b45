"""Metrics are written late and in order, and what is wrong is found."""

import dataclasses
import logging
import types

import jax.numpy as jnp
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_file_loader import (
  LegacyEventFileLoader,
)

from realm_jax.errors import RealmError
from realm_jax.training import metrics as metrics_module
from realm_jax.training.metric_rows import read_rows
from realm_jax.training.metrics import MetricsLog, NonFiniteLossError
from tests.full_disk import full_disk


def _open(model_dir, start_step=0, **settings):
  return MetricsLog(
    model_dir,
    start_step=start_step,
    num_steps=10,
    examples_per_step=8,
    **settings,
  )


def _metrics(loss):
  return {"loss": jnp.float32(loss), "gradient_norm": jnp.float32(1.0)}


def _events(model_dir):
  """The scalars of all events by their step, in the order of the files."""
  return [
    (event.step, {one.tag: one.simple_value for one in event.summary.value})
    for path in sorted(model_dir.glob("*tfevents*"))
    for event in LegacyEventFileLoader(str(path)).Load()
    if event.summary.value
  ]


def test_a_step_is_a_row_and_an_event_of_tensorboard(tmp_path):
  # A run that goes on adds to the rows, and has events of its own.
  for start_step in (0, 3):
    log = _open(tmp_path, start_step)
    for step in range(start_step + 1, start_step + 4):
      log.push(step, _metrics(1.0 / step), {"recall": step / 8})
    log.flush()
    log.close()
  rows = read_rows(tmp_path)
  for row in rows:
    # Eight examples a step.
    assert row["examples_per_second"] * row["step_seconds"] == pytest.approx(8)
  steps, values = zip(*_events(tmp_path), strict=True)
  assert steps == tuple(row["step"] for row in rows) == (1, 2, 3, 4, 5, 6)
  for step, *both in zip(steps, rows, values, strict=True):
    for metrics in both:
      assert metrics["recall"] == step / 8
      assert metrics["loss"] == pytest.approx(1 / step)


@dataclasses.dataclass(frozen=True)
class Listed:
  """A tracker, and its writer, that keeps what it is given."""

  taken: list

  def open(self, model_dir):
    return self

  def write_scalars(self, step, scalars):
    self.taken.append((step, scalars))

  def flush(self):
    self.taken.append("flush")

  def close(self):
    self.taken.append("close")


def test_a_writer_of_ones_own_is_given_each_step(tmp_path):
  taken = []
  for start_step in (0, 2):
    log = _open(tmp_path, start_step, writers=[Listed(taken)])
    for step in range(start_step + 1, start_step + 4):
      log.push(step, _metrics(1.0 / step), {"recall": step / 8})
    log.flush()
    log.close()
    assert taken[-2:] == ["flush", "close"]
  steps, values = zip(*[t for t in taken if isinstance(t, tuple)], strict=True)
  # The third is repeated after a checkpoint of the second.
  assert steps == (1, 2, 3, 3, 4, 5)
  rows = {row["step"]: row for row in read_rows(tmp_path)}
  assert values[-1].items() <= rows[5].items()
  assert {"loss", "recall", "step_seconds"} <= values[-1].keys()
  assert not _events(tmp_path)
  with pytest.raises(RealmError, match=r"pip install wandb"):
    _open(tmp_path, writers=["wandb"])


def test_a_line_says_how_long_the_run_takes_at_its_pace(
  tmp_path, caplog, monkeypatch
):
  now = [0.0]
  clock = types.SimpleNamespace(
    **dict.fromkeys(("time", "monotonic", "perf_counter"), lambda: now[0])
  )
  monkeypatch.setattr(metrics_module, "time", clock)
  log = _open(tmp_path)
  with caplog.at_level(logging.INFO):
    for step in range(1, 6):
      # The first step takes an hour, most of which is not the pace.
      now[0] += 20.0 if step > 1 else 3600.0
      log.push(step, _metrics(1.0), {})
  log.close()
  # Step 3 came 40 seconds after step 1, and 7 are left.
  (line,) = [text for text in caplog.messages if "step 3 of 10" in text]
  assert line.endswith(", 0:02:20 left")


@pytest.mark.parametrize(
  ("named", "bad"),
  [("loss", "nan"), ("gradient_norm", "inf"), ("parameter_norm", "inf")],
)
def test_a_nan_stops_the_run_within_two_steps(tmp_path, named, bad):
  log = _open(tmp_path)
  log.push(1, _metrics(1.0), {})
  log.push(2, _metrics(1.0) | {named: jnp.float32(bad)}, {})
  log.push(3, _metrics(1.0), {})
  with pytest.raises(NonFiniteLossError, match=f"{named} .*step 2"):
    log.push(4, _metrics(1.0), {})
  log.close()
  # What came before stays, and nothing of the bad step is written.
  assert [row["step"] for row in read_rows(tmp_path)] == [1]


def test_metrics_of_a_full_disk_are_written_once_there_is_space(
  tmp_path, caplog
):
  first = _open(tmp_path)
  for step in range(1, 31):
    first.push(step, _metrics(-1.0), {"recall": 0.0})
  first.flush()
  first.close()
  events = len(_events(tmp_path))
  with caplog.at_level(logging.WARNING), full_disk() as free:
    # Nor can the rows of steps that are repeated be removed.
    log = _open(tmp_path)
    for step in range(1, 101):
      log.push(step, _metrics(step), {"recall": step / 100})
      if step % 20 == 0:
        log.flush()
    assert len(read_rows(tmp_path)) < 100
    assert sum(str(tmp_path) in text for text in caplog.messages) == 1
    free()
    log.flush()
    log.close()
  assert [row["loss"] for row in read_rows(tmp_path)] == list(range(1, 101))
  losses = [values["loss"] for _, values in _events(tmp_path)[events:]]
  assert losses == list(range(1, 101))


@pytest.mark.parametrize("falling", ["recall", "candidate_entropy"])
def test_a_collapse_is_named_before_it_is_complete(tmp_path, caplog, falling):
  rng = np.random.default_rng(0)
  log = _open(tmp_path)
  with caplog.at_level(logging.WARNING):
    for step in range(1, 301):
      metrics = {"recall": 0.97, "candidate_entropy": 1.8}
      metrics[falling] *= 1 - 0.97 * min(1.0, step / 250)
      noisy = {name: x + rng.normal(0, 0.03) for name, x in metrics.items()}
      noisy["retrieval_utility"] = rng.normal(0, 0.02)
      log.push(step, _metrics(1.0), noisy)
      if caplog.messages:
        break
  assert 60 < step < 200
  assert falling in caplog.text
  assert "FREEZE_RETRIEVER_STEPS" in caplog.text
