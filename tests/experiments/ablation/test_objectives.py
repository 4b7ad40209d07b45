"""How the objectives are compared: at which settings, and for how long."""

import pytest

from experiments.ablation.plan import Plan
from experiments.pipeline import steps_of_equal_seconds
from tests.experiments.ablation.conftest import (
  configured,
  planned,
  plans,
  steps,
)
from tests.json_lines import write_lines


@pytest.fixture(scope="module")
def config():
  few = ["TEMPERATURES = [1.0, 0.5]", "RATES = [1.0]"]
  return configured("objectives", *few, "NUM_STEPS = {'pretraining': 400}")


def _trained(plan, name):
  return _steps(plan)[f"pretraining/{name}"].command.build()


def _steps(plan):
  return steps(plan, min(plan.seeds))


def test_steps_of_equal_seconds():
  # 320 steps of 0.125 s take 40 s. Between checkpoints none end.
  for own_seconds, expected in ((0.104, 400), (0.125, 300), (9.0, 50)):
    assert steps_of_equal_seconds(400, 0.1, own_seconds, every=50) == expected


def _write(folder, name, *rows):
  path = folder / "seed-100" / name
  path.parent.mkdir(parents=True, exist_ok=True)
  write_lines(path, rows)


_COSTS = {"realm": 0.1, "perplexity": 0.2, "hard_negatives": 0.05}
_RECALLS = {
  "reading_retrieved": 0.3,
  "realm_1_1": 0.4,
  "realm_0.5_1": 0.4,
  "perplexity_1_1": 0.1,
  "perplexity_0.5_1": 0.5,
  "hard_negatives_1_1": 0.2,
  "hard_negatives_0.5_1": 0.3,
}


def _write_results(plan, folder):
  """Writes what the runs of a plan would."""
  if plan.rows[0].part == "cost":
    for name, seconds in _COSTS.items():
      # The first half of the steps waits for the index.
      times = [9.0] * 30 + [seconds] * 29 + [9.0]
      rows = [
        {"step": n, "step_seconds": time} for n, time in enumerate(times, 1)
      ]
      _write(folder, f"pretraining/{name}_cost/metrics.jsonl", *rows)
  if plan.rows[0].part == "development":
    for name, recall in _RECALLS.items():
      file = f"evaluations/{name}/statements/metrics.json"
      _write(folder, file, {"recall_at_1": recall})


def test_a_row_takes_its_best_setting_and_as_many_seconds(
  config, tmp_path, monkeypatch
):
  monkeypatch.setattr(Plan, "is_finished", lambda plan: True)
  names, executed = ("perplexity", "hard_negatives"), []
  for plan in plans(config, *names, folder=tmp_path):
    _write_results(plan, tmp_path)
    executed.append(plan)
  costs, development, plan = executed
  # No index is built while steps are measured.
  assert _trained(costs, "realm_cost").num_steps == 60
  builder = _steps(costs)["pretraining/realm_cost"].builder
  assert builder.bindings["REFRESH_EVERY_STEPS"] >= 60
  assert _trained(development, "hard_negatives_1_1").num_steps == 800
  assert _trained(development, "perplexity_0.5_1").num_steps == 400
  assert [row.name for row in plan.rows] == [
    "realm",
    "perplexity",
    "inverse_cloze",
    "perplexity_seconds",
    "hard_negatives",
  ]
  trained = {
    name: (of["steps"], of["SCORE_SCALE"], of["collapsed in the grid"])
    for name, of in plan.training.items()
  }
  assert trained == {
    "realm": (400, 20.0, "0 of 2"),
    "perplexity": (400, 40.0, "1 of 2"),
    "perplexity_seconds": (200, 40.0, "1 of 2"),
    "hard_negatives": (800, 16.0, "0 of 2"),
  }
  # Masked words are filled in at the temperature of training, and open QA is
  # the same for all.
  masked = _steps(plan)["evaluations/perplexity/masked"].command.bindings
  assert masked["SCORE_SCALE"] == 40.0
  open_qa = _steps(plan)["open_qa/perplexity"].command.build()
  assert open_qa.retriever.score_scale == 20.0
  # What was measured is not measured again.
  again = [plan.rows[0].part for plan in plans(config, *names, folder=tmp_path)]
  assert again == ["development", "objectives"]


def test_a_stale_row_shares_what_is_the_same_and_is_compared_with_it(config):
  # Only listed, it plans without measurements.
  plan = planned(config, "staleness", "replug")
  trained = {"pretraining/replug", "pretraining/replug_seconds"}
  assert trained <= {*_steps(plan)}
  references = {row.name: row.reference for row in plan.rows}
  assert references["realm_rolling"] == "realm_refresh_50"
  assert references["replug_refresh_50"] == "realm"
  assert references["replug_refresh_1500"] == "replug_refresh_50"
  # A refresh every 50 steps is what the objective itself has.
  assert plan.results["replug_refresh_50"][0]["run"].folder.name == "replug"
  assert _trained(plan, "replug_refresh_200").refresh_every_steps == 200
  assert _trained(plan, "replug_rolling").keeps_rolling_index
  assert _steps(plan)["pretraining/replug_rolling"].builder is None
