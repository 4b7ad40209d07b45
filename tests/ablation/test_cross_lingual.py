"""What each row over two languages trains on and searches."""

from pathlib import Path

import pytest

from realm_jax import configuration
from realm_jax.ablation.plan import chosen_ablation
from realm_jax.ablation.rows import select

_RECIPE = "gin/experiments/cross_lingual/ablation.gin"
_OUT = Path("out")


@pytest.fixture(scope="module")
def plan():
  with configuration.parsed(chosen_ablation, [_RECIPE]):
    config = configuration.configured(chosen_ablation)()
  rows = select(["all"], config.rows)
  ((_, plan),) = config.plans(rows, seeds=[0, 1], output_dir=_OUT)
  return plan


def _corpus(bindings):
  return Path(bindings["CORPUS_DIR"]).name


def test_rows_differ_in_what_they_learn_from_and_search(plan):
  runs = {run.name: run for run in plan.runs if run.seed == 1}
  found = {}
  for name, results in plan.results.items():
    assert results[1]["first"] == _OUT / f"seed-1/evaluations/{name}/first"
    evaluated = runs[f"evaluations/{name}/first"].step.command.bindings
    trained = Path(evaluated["MODEL_DIR"]).relative_to(_OUT / "seed-1")
    run = runs[trained.as_posix()].step
    assert evaluated["GENERATION"] == str(_OUT / f"seed-1/generations/{name}")
    found[name] = (
      trained.as_posix(),
      _corpus(run.command.bindings),
      _corpus(evaluated),
    )
    # It trains on what it searches, and learns from the queries' language.
    assert _corpus(run.sidecar.bindings) == _corpus(run.command.bindings)
    examples = run.command.bindings["PRETRAINING_CORPUS_DIR"]
    assert Path(examples) == _OUT / "seed-1/own_corpus"
  assert found == {
    "realm": ("both/pretraining", "corpus", "corpus"),
    "realm_on_own": ("both/pretraining_on_own", "own_corpus", "corpus"),
    "inverse_cloze": ("both/reading_retrieved", "corpus", "corpus"),
    "own": ("own/pretraining", "own_corpus", "own_corpus"),
    "bm25": ("both/pretraining", "corpus", "corpus"),
  }


def test_rows_of_both_corpora_begin_alike(plan):
  runs = {run.name: run.step.command.bindings for run in plan.runs}
  starts = {
    name: [bindings[f"INITIAL_{part}"] for part in ("CHECKPOINT", "READER")]
    for name, bindings in runs.items()
    if "/pretraining" in name
  }
  assert starts["both/pretraining"] == starts["both/pretraining_on_own"]
  assert starts["own/pretraining"] == [
    str(_OUT / "seed-1/own" / name)
    for name in ("inverse_cloze", "reading_retrieved")
  ]


def test_every_command_is_configured_and_follows_what_it_needs(plan):
  made = set()
  for run in plan.runs:
    for command in filter(None, (run.step.command, run.step.sidecar)):
      if run.seed == 0:
        with command.configured():
          pass
    needed = {
      run.step.command.bindings.get(name)
      for name in ("INITIAL_CHECKPOINT", "INITIAL_READER", "GENERATION")
    }
    assert made >= needed - {None}, run.name
    made.add(str(run.step.folder))
