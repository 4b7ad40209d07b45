"""Evaluations of the same questions."""

import pytest

from realm_jax.evaluation.compare import (
  ComparisonError,
  compare,
  comparison_table,
)
from tests.evaluation.lines import line
from tests.json_lines import write_lines


def _predictions(correct):
  return [
    line(i, prediction="p", correct=bool(c), f1=float(c), words=[i % 6])
    for i, c in enumerate(correct)
  ]


def test_questions_are_paired_by_their_ids(tmp_path):
  first = write_lines(
    tmp_path / "first.jsonl", _predictions([1] * 8 + [0] * 32)
  )
  right = _predictions([0] * 2 + [1] * 6 + [1] * 20 + [0] * 12)
  second = write_lines(tmp_path / "second.jsonl", reversed(right))
  found = compare(first, second)
  (metrics,) = found["comparisons"]
  metric = metrics["exact_match"]
  assert found["figures"][0]["num_questions"] == 40
  assert (metric["first"], metric["second"]) == (0.2, 0.65)
  assert metric["difference"] == pytest.approx(0.45)
  assert (metric["first_better"], metric["second_better"]) == (2, 20)
  # The signs of 22 differences: a sum of 18 or more has probability 1e-4.
  assert metric["p_value"] < 0.001
  low, high = metric["interval"]
  assert 0.2 < low < 0.45 < high < 0.7
  same = metrics["mrr"]
  assert (same["difference"], same["p_value"]) == (0.0, 1.0)


def test_several_evaluations_are_rows_that_are_compared_with_the_first(
  tmp_path,
):
  right = {"one": 10, "two": 20, "three": 40}
  for name, count in right.items():
    lines = _predictions([1] * count + [0] * (40 - count))
    (tmp_path / name).mkdir()
    write_lines(tmp_path / name / "predictions.jsonl", lines)
  folders = [tmp_path / name for name in right]
  found = compare(*folders, metrics=["exact_match"])
  metrics = found["figures"]
  assert [one["exact_match"] for one in metrics] == [0.25, 0.5, 1.0]
  low, high = metrics[0]["intervals"]["exact_match"]
  assert 0.05 < low < 0.25 < high < 0.45
  second, third = found["comparisons"]
  (alone,) = compare(*folders[:2])["comparisons"]
  assert second.items() <= alone.items()
  assert second["exact_match"]["second_better"] == 10
  assert third["exact_match"]["second_better"] == 30
  rows = [row.split() for row in comparison_table(found).splitlines()]
  shown = {row[0]: row[1] for row in rows if row[0:1] and row[0][0] == "/"}
  means = ("0.2500", "0.5000", "1.0000")
  assert shown == dict(zip(map(str, folders), means, strict=True))
  with pytest.raises(ComparisonError, match=r"metrics f2; want some of .*f1"):
    compare(*folders, metrics=["f2"])


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (lambda rows: rows.pop(), "1 questions are in one of .*'q2'"),
    (lambda rows: rows.append(rows[0]), "line 4: .*a second .* id 'q0'"),
    (lambda rows: rows[1].update(references=["z"]), "references of 'q1'"),
    (lambda rows: rows[1].pop("evidence"), "line 2: KeyError.*evidence"),
  ],
)
def test_what_cannot_be_compared(tmp_path, change, message):
  rows = [line(i) for i in range(3)]
  first = write_lines(tmp_path / "first.jsonl", rows)
  change(rows)
  second = write_lines(tmp_path / "second.jsonl", rows)
  with pytest.raises(ComparisonError, match=message):
    compare(first, second)
