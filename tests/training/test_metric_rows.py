"""The metrics of a run are the same, on a disk and on an object store."""

import json

import pytest
from etils import epath

from realm_jax.training.metric_rows import MetricRows, read_rows


@pytest.fixture(params=["disk", "store"])
def model_dir(request, tmp_path) -> epath.Path:
  if request.param == "disk":
    return epath.Path(tmp_path / "run")
  store = request.getfixturevalue("object_store")
  return epath.Path(store.path(f"metric_rows/{tmp_path.name}"))


def run(model_dir, start, *flushed) -> None:
  """Writes rows from a step on, flushes after some, and is killed then."""
  rows = MetricRows(model_dir, start_step=start)
  step = start
  for last in flushed:
    while step < last:
      step += 1
      rows.add_row({"step": step, "from": start, "loss": 1.0 / step})
    rows.flush()
  rows.flush()
  rows.add_row({"step": step + 1, "from": start, "loss": 0.0})


def origins(model_dir) -> dict[int, int]:
  """Returns the first step of the run that has written each row."""
  rows = read_rows(model_dir)
  assert [row["loss"] for row in rows] == [1.0 / row["step"] for row in rows]
  assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
  return {row["step"]: row["from"] for row in rows}


def test_rows_after_the_checkpoint_that_is_resumed_are_dropped(model_dir):
  run(model_dir, 0, 4, 8, 12)
  assert list(origins(model_dir)) == list(range(1, 13))
  # In the midst of what was flushed together, and at its end.
  run(model_dir, 6)
  assert list(origins(model_dir)) == [1, 2, 3, 4, 5, 6]
  run(model_dir, 6, 7, 10)
  run(model_dir, 7, 9)
  expected = dict.fromkeys(range(1, 7), 0) | {7: 6, 8: 7, 9: 7}
  assert origins(model_dir) == expected
  run(model_dir, 0, 1)
  assert origins(model_dir) == {1: 0}


def test_a_row_that_was_cut_ends_the_rows(tmp_path):
  whole = json.dumps({"step": 1, "from": 0, "loss": 1.0})
  (tmp_path / "metrics.jsonl").write_text(f'{whole}\n{{"step": 2, "lo')
  assert list(origins(tmp_path)) == [1]
