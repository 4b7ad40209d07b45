"""Means over seeds and comparisons with REALM, by hand, and their report."""

from types import SimpleNamespace

import numpy as np
import pytest

from experiments.ablation.plan import Plan
from experiments.ablation.report import (
  collect_results,
  holm,
  row_statistics,
  write_report,
)
from experiments.ablation.rows import select
from experiments.pipeline import Command, Step
from tests.evaluation.lines import line
from tests.experiments.ablation.conftest import OUT, configured
from tests.json_lines import write_lines


def test_the_figures_of_three_seeds_by_hand():
  realm = [np.array([1.0, 1, 1, 0]), np.array([1.0, 0]), np.array([1.0, 1])]
  other = [np.array([1.0, 0, 0, 0]), np.array([0.0, 0]), np.array([1.0, 1])]
  statistics = row_statistics(other, realm)
  assert statistics["by_seed"] == [0.25, 0.0, 1.0]
  assert statistics["mean"] == pytest.approx(1.25 / 3)
  # Squares of −1/6, −5/12 and 7/12, over 2.
  assert statistics["standard_deviation"] == pytest.approx(
    (78 / 144 / 2) ** 0.5
  )
  assert statistics["difference"] == pytest.approx((-0.5 - 0.5 + 0) / 3)
  assert statistics["seeds_better"] == 0
  # Three questions differ, by −1/4 twice in the first seed and by −1/2 in the
  # second: of their eight signs, two give such a sum.
  assert statistics["p_value"] == pytest.approx(2 / 8, abs=0.02)
  low, high = statistics["difference_interval"]
  assert low < statistics["difference"] < high <= 0


@pytest.fixture
def results(tmp_path):
  """`results(name, correct, words)` writes the evaluations of two seeds.

  `correct` are each seed's answers to two questions, and `words` the places of
  the block with the answer.
  """

  def write(name, correct, words):
    steps = []
    for seed, (answers, places) in enumerate(zip(correct, words, strict=True)):
      folder = tmp_path / f"seed-{seed}" / name
      folder.mkdir(parents=True)
      rows = enumerate(zip(answers, places, strict=True))
      write_lines(
        folder / "predictions.jsonl",
        [
          line(number, prediction="p", correct=right, words=[place])
          for number, (right, place) in rows
        ],
      )
      step = Step(Command("evaluate", [], {}), folder)
      steps.append({"answers": step, "zero_shot": step})
    return steps

  return write


def _plan(results, **pretrainings):
  """A plan of the demo's rows that have results."""
  config = configured("demo")
  rows = select([*results], config.all_rows())
  plan = Plan(config, rows, [], [], OUT)
  plan.results, plan.pretrainings = results, pretrainings
  return plan


def test_rows_are_read_compared_and_reported(results, tmp_path):
  row_results = {
    "realm": results("realm", [[1, 1], [1, 0]], [[0, 4], [0, 5]]),
    "stale_index": results("stale", [[0, 1], [0, 0]], [[5, 5], [0, 5]]),
    "candidates_2": results("two", [[1, 1], [1, 1]], [[0, 0], [0, 0]]),
  }
  plan = _plan(row_results, stale_index=SimpleNamespace(never_refreshed=True))
  results = collect_results(plan)
  metrics = {row["name"]: row["metrics"] for row in results["rows"]}
  assert {
    name: (of_row["exact_match"]["mean"], of_row["recall_at_5"]["mean"])
    for name, of_row in metrics.items()
  } == {
    "realm": (0.75, 0.75),
    "stale_index": (0.25, 0.25),
    "candidates_2": (1.0, 1.0),
  }
  results |= {"seeds": [0, 1], "commit": "abc"}
  table = write_report(tmp_path, plan.metrics, results)
  # Mean, deviation (0.5 and 0), difference, and the paper's 28.7.
  (stale, _) = (row for row in table.splitlines() if row.startswith("30×"))
  assert "0.250  0.354      -0.500" in stale
  assert stale.split()[-1] == "0.287"
  markdown = (tmp_path / "ablation.md").read_text()
  assert "| 30× stale index (never refreshed) | 0.250 | 0.354 |" in markdown
  assert (tmp_path / "candidates.png").exists()


def test_holm_by_hand():
  # 4 × 0.005, 3 × 0.01, 2 × 0.03, and 0.04, which is not below the one before.
  corrected = holm([0.01, 0.04, 0.03, 0.005])
  assert corrected == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_a_row_is_better_by_the_corrected_p_value_and_in_every_seed(results):
  none, all_ = [0] * 40, [1] * 40
  few = [*none[:36], *all_[:4]]
  row_results = {
    name: results(name, seeds, [none] * 2)
    for name, seeds in {
      "realm": (none, none),
      "baseline": ([0, 1] * 20, all_),
      "no_null": (none, all_),
      # p is 0.0078, and more if rows are tested that are no better.
      "stale_index": (few, few),
    }.items()
  }
  for name in ("joint_loss", "per_token_loss"):
    row_results[name] = row_results["realm"]
  results = collect_results(_plan(row_results))
  metrics = {row["name"]: row["metrics"] for row in results["rows"]}
  better = {
    n for n, of in metrics.items() if of["exact_match"].get("is_better")
  }
  assert better == {"baseline"}
