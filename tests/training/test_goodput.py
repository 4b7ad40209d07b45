"""How the wall time of a run was spent, over its lives."""

import json

import pytest

from realm_jax.training.goodput import Goodput


class _Clock:
  """A clock that a test moves on."""

  def __init__(self):
    self.now = 100.0

  def __call__(self):
    return self.now


def test_what_is_measured_of_the_start_up_counts_once():
  clock = _Clock()
  goodput = Goodput(clock)
  clock.now += 4
  with goodput.measure("compiling"):
    clock.now += 5
  goodput.started()
  clock.now += 10
  with goodput.measure("saving"):
    clock.now += 4
  with goodput.measure("waiting"):
    clock.now += 2
  assert goodput.row() == {
    "goodput": 10 / 25,
    "wall_seconds": 25,
    "start_up_seconds": 4,
    "compiling_seconds": 5,
    "waiting_seconds": 2,
    "saving_seconds": 4,
    "repeated_seconds": 0,
  }


@pytest.mark.parametrize(("checkpoint", "repeated"), [(1, 20), (0, 30)])
def test_what_came_after_the_last_checkpoint_is_lost(
  tmp_path, checkpoint, repeated
):
  clock = _Clock()
  goodput = Goodput(clock)
  goodput.started()
  rows = []
  for step in (1, 2, 3):
    clock.now += 10
    rows.append({"step": step, **goodput.row()})
  lines = "".join(json.dumps(row) + "\n" for row in rows)
  (tmp_path / "metrics.jsonl").write_text(lines)

  again = Goodput(clock)
  again.resume(tmp_path, checkpoint)
  again.started()
  clock.now += 10
  row = again.row()
  assert row["wall_seconds"] == 40
  assert row["repeated_seconds"] == repeated
  assert row["goodput"] == (40 - repeated) / 40
