"""How the objectives are compared: at which settings, and for how long."""

import json
from pathlib import Path

import pytest

from realm_jax import configuration
from realm_jax.ablation.objectives import steps_of_equal_seconds
from realm_jax.ablation.plan import AblationError, chosen_ablation
from realm_jax.ablation.rows import select
from realm_jax.pipeline import Step

_RECIPE = "gin/experiments/objectives/ablation.gin"
_DEVELOPMENT = "seed-100"


@pytest.fixture(scope="module")
def config():
  few = ["TEMPERATURES = [1.0, 0.5]", "RATES = [1.0]"]
  with configuration.parsed(chosen_ablation, [_RECIPE], few):
    return configuration.configured(chosen_ablation)()


def _plans(config, output_dir, *names):
  rows = select(names, config.rows)
  return config.plans(rows, seeds=[0], output_dir=output_dir)


def _runs(plan):
  return {run.name: run.step for run in plan.runs}


def _trained(plan, name):
  with _runs(plan)[f"pretraining/{name}"].command.configured() as configured:
    return configured()


@pytest.mark.parametrize(
  "own_seconds, steps",
  [(0.1, 400), (0.104, 400), (0.05, 800), (0.125, 300), (9.0, 50)],
)
def test_steps_of_equal_seconds(own_seconds, steps):
  # 320 steps of 0.125 s take 40 s. Between checkpoints none end.
  found = steps_of_equal_seconds(400, 0.1, own_seconds, every=50)
  assert found == steps


def _write_costs(folder, **costs):
  """Writes the rows of steps whose first half waits for the index."""
  for name, seconds in costs.items():
    path = folder / _DEVELOPMENT / f"pretraining/{name}_cost/metrics.jsonl"
    path.parent.mkdir(parents=True)
    times = [9.0] * 30 + [seconds] * 29 + [9.0]
    path.write_text(
      "".join(
        json.dumps({"step": step, "step_seconds": time}) + "\n"
        for step, time in enumerate(times, 1)
      )
    )


def _write_recalls(folder, **recalls):
  for name, recall in recalls.items():
    path = folder / _DEVELOPMENT / f"evaluations/{name}/statements/metrics.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"recall_at_1": recall}))


def test_a_row_takes_its_best_setting_and_as_many_seconds(
  config, tmp_path, monkeypatch
):
  monkeypatch.setattr(Step, "is_finished", lambda self: True)
  plans = _plans(config, tmp_path, "perplexity", "hard_negatives")
  _, costs = next(plans)
  # No index is built while steps are measured.
  assert _trained(costs, "realm_cost").num_steps == 60
  sidecar = _runs(costs)["pretraining/realm_cost"].sidecar
  assert sidecar.bindings["REFRESH_EVERY_STEPS"] >= 60
  _write_costs(tmp_path, realm=0.1, perplexity=0.2, hard_negatives=0.05)
  _, development = next(plans)
  assert _trained(development, "hard_negatives_1_1").num_steps == 800
  assert _trained(development, "perplexity_0.5_1").num_steps == 400
  recalls = {
    "reading_retrieved": 0.3,
    "realm_1_1": 0.4,
    "realm_0.5_1": 0.4,
    "perplexity_1_1": 0.1,
    "perplexity_0.5_1": 0.5,
    "hard_negatives_1_1": 0.2,
    "hard_negatives_0.5_1": 0.3,
  }
  _write_recalls(tmp_path, **recalls)
  rows, plan = next(plans)
  assert [row.name for row in rows] == [
    "realm",
    "perplexity",
    "inverse_cloze",
    "perplexity_seconds",
    "hard_negatives",
  ]
  found = {
    name: (of["steps"], of["SCORE_SCALE"], of["collapsed in the grid"])
    for name, of in plan.training.items()
  }
  assert found == {
    "realm": (400, 20.0, "0 of 2"),
    "perplexity": (400, 40.0, "1 of 2"),
    "perplexity_seconds": (200, 40.0, "1 of 2"),
    "hard_negatives": (800, 16.0, "0 of 2"),
  }
  assert _trained(plan, "perplexity_seconds").num_steps == 200
  # Masked words are filled in at the temperature of training, and open QA is
  # the same for all.
  masked = _runs(plan)["evaluations/perplexity/masked"].command.bindings
  assert masked["SCORE_SCALE"] == 40.0
  with _runs(plan)["open_qa/perplexity"].command.configured() as configured:
    assert configured().retriever.score_scale == 20.0
  assert list(plans) == []
  # What was measured is not measured again when the command is repeated.
  rows, _ = next(_plans(config, tmp_path, "perplexity", "hard_negatives"))
  assert {row.part for row in rows} == {"development"}


def test_a_dry_run_plans_without_measurements(config, tmp_path):
  plans = [plan for _, plan in _plans(config, tmp_path, "emdr2")]
  assert len(plans) == 3
  assert {"pretraining/emdr2", "pretraining/emdr2_seconds"} <= {
    *_runs(plans[-1])
  }
  assert not any(tmp_path.iterdir())


def test_a_stale_row_shares_what_is_the_same_and_is_compared_with_it(
  config, tmp_path
):
  *_, (rows, plan) = _plans(config, tmp_path, "staleness")
  references = {row.name: row.reference for row in rows}
  assert references["realm_rolling"] == "realm_refresh_50"
  assert references["emdr2_refresh_50"] == "realm"
  assert references["emdr2_refresh_1500"] == "emdr2_refresh_50"
  assert not any(name.startswith("replug") for name in references)
  # A refresh every 50 steps is what the objective itself has.
  assert plan.results["emdr2_refresh_50"][0]["run"].name == "emdr2"
  assert _trained(plan, "emdr2_refresh_200").refresh_every_steps == 200
  assert "emdr2_refresh_1500" in plan.never_refreshed
  rolling = _trained(plan, "emdr2_rolling")
  assert rolling.keeps_own_index
  assert _runs(plan)["pretraining/emdr2_rolling"].sidecar is None


def test_the_development_world_is_no_other(config):
  with pytest.raises(
    AblationError, match="seed 100 is that of the development"
  ):
    next(
      config.plans(
        select(["realm"], config.rows), seeds=[100], output_dir=Path()
      )
    )
