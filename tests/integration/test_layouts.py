"""How runs of several layouts are compared."""

import numpy as np
import pytest

from benchmarks import layouts
from benchmarks.runs import comparison
from benchmarks.runs.comparison import DifferingIds, Retrieved
from benchmarks.runs.groups import GroupRun, Layout


def _retrieved(ids, scores):
  return {5: Retrieved(np.asarray([ids]), np.asarray([scores], np.float32))}


def test_the_greatest_difference_of_losses_is_relative():
  assert comparison.greatest_difference([10, 20], [10, 21]) == 0.05
  assert comparison.greatest_difference([10, 20], [10]) == float("inf")
  assert comparison.greatest_difference([], []) == float("inf")


@pytest.mark.parametrize(
  ("ids", "scores", "expected"),
  [
    ([1, 2, 3], [9, 8, 7], DifferingIds(3, 0, 0)),
    # Two blocks with the same score change places.
    ([2, 1, 3], [8.0001, 8.9999, 7], DifferingIds(3, 2, 0)),
    # Another block is as good as the last one.
    ([1, 2, 4], [9, 8, 7.0001], DifferingIds(3, 1, 0)),
    # Another block is better than the last one, which misses for no reason.
    ([1, 4, 2], [9, 8.5, 8], DifferingIds(3, 2, 2)),
    # A block has another score.
    ([1, 2, 3], [9, 8, 7.5], DifferingIds(3, 0, 1)),
  ],
)
def test_ids_differ_unless_their_scores_are_ties(ids, scores, expected):
  reference = _retrieved([1, 2, 3], [9, 8, 7])
  found = comparison.differing_ids(reference, _retrieved(ids, scores))
  assert found == expected


def test_a_checkpoint_of_one_run_alone_differs():
  reference = _retrieved([1, 2, 3], [9, 8, 7])
  found = comparison.differing_ids(reference, {})
  assert found == DifferingIds(3, 3, 3)


def test_agreement_is_timed_from_when_the_last_process_asks():
  # The second process asks half a second later, and has its answer 10 ms after.
  first = [[step, step, step + 0.508] for step in range(3)]
  second = [[step, step + 0.5, step + 0.51] for step in range(3)]
  found = comparison.agreement_overhead(
    [[first, second]], [[1.0, 1.0, 1.0]], [[0.9, 0.8, 0.8]]
  )
  assert found["steps"] == 3
  assert found["decision_ms"] == pytest.approx(10)
  assert found["wait_for_slower_ms"] == pytest.approx(500)
  assert found["decision_share"] == pytest.approx(0.01)
  assert found["added_to_step"] == pytest.approx(0.25)


def test_layouts_have_a_process_for_each_number(tmp_path):
  run = GroupRun(
    directory=tmp_path,
    corpus_dir=tmp_path,
    recipe="reading",
    model="benchmarks/soak.gin",
    layout=Layout(4, 2, model=2),
    settings={},
  )
  group = run.trainers()
  assert str(run.layout) == "4 × 2 model 2"
  assert [job.command[6] for job in group] == [
    f"--process_id={process}" for process in range(4)
  ]
  assert len({job.command[3] for job in group}) == 1
  # A single process is not told of others.
  (alone,) = GroupRun(
    directory=tmp_path,
    corpus_dir=tmp_path,
    recipe="reading",
    model="benchmarks/soak.gin",
    layout=Layout(1, 1),
    settings={},
  ).trainers()
  assert not any(word.startswith("--process") for word in alone.command)


def test_the_table_says_what_differs():
  row = {
    "layout": "2 × 4",
    "stage": "pretrain",
    "index": "EXACT",
    "loss_difference": 2e-6,
    "ids": DifferingIds(96, 2, 0)._asdict(),
    "passed": True,
  }
  line = " ".join(layouts.line(row).split())
  assert line == (
    "ok 2 × 4 pretrain EXACT losses within 2.0e-06, 2 of 96 ids differ, "
    "0 without a tie"
  )
  fault = {"fault": "SIGTERM", "observed": "no exit", "passed": False}
  assert layouts.line(fault) == "FAIL  SIGTERM: no exit"
