"""The record finds what differs between two sides, and names it."""

import json

import numpy as np
import orbax.checkpoint as ocp
import pytest

from benchmarks.record import comparison
from benchmarks.record.sides import Side
from benchmarks.record.steps import Output, Step


@pytest.fixture
def sides(tmp_path):
  """The base and the present side, with empty folders."""
  folders = {name: tmp_path / name for name in ("base", "now")}
  for folder in folders.values():
    folder.mkdir()
  return [
    Side(name, tmp_path, "python", tmp_path, folder, folders["base"])
    for name, folder in folders.items()
  ]


def _row(sides, output):
  return comparison.compare(*sides, Step("step", (), (output,)), output)


def _write_metrics(side, **changes):
  row = {"loss": 2.0, "step_seconds": np.random.rand(), "run": str(side.out)}
  (side.out / "metrics.jsonl").write_text(json.dumps({**row, **changes}))


def test_values_differ_beyond_the_tolerance_and_by_no_time_or_folder(sides):
  output = Output("metrics", "values", "metrics.jsonl", 1e-4)
  for side in sides:
    _write_metrics(side)
  assert _row(sides, output).is_same
  _write_metrics(sides[1], loss=2.0001)
  assert _row(sides, output).is_same
  _write_metrics(sides[1], loss=2.001)
  row = _row(sides, output)
  assert (row.is_same, row.where) == (False, "[0].loss")
  assert row.difference == pytest.approx(5e-4)
  _write_metrics(sides[1], loss=float("nan"))
  assert not _row(sides, output).is_same


def test_what_one_side_lacks_differs(sides):
  output = Output("corpus", "bytes", "corpus")
  for side in sides:
    (side.out / "corpus").mkdir()
    (side.out / "corpus" / "vocab.txt").write_text("[PAD]")
  assert _row(sides, output).is_same
  (sides[0].out / "corpus" / "tokens").write_text("1")
  row = _row(sides, output)
  assert (row.is_same, row.where) == (False, "tokens")
  assert not _row(sides, Output("figures", "values", "metrics.json")).is_same


def test_a_gradient_is_compared_by_the_largest_and_by_its_own(sides):
  output = Output("gradient", "gradient", "1", 1e-6)

  def save(side, **changes):
    mean = {"large": np.ones(4), "small": np.full(4, 1e-5), **changes}
    with ocp.StandardCheckpointer() as checkpointer:
      checkpointer.save(
        side.out / "1" / "optimizer", {"adam": {"mean": mean}}, force=True
      )

  for side in sides:
    save(side)
  assert _row(sides, output).is_same
  save(sides[1], large=np.full(4, 1 + 1e-5))
  assert _row(sides, output).where == "large"
  # A tenth of the small one is less than 1e-6 of the large one.
  save(sides[1], small=np.full(4, 1.05e-5))
  row = _row(sides, output)
  assert (row.is_same, row.where) == (False, "small")
