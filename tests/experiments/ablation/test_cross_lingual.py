"""What each row over two languages trains on and searches."""

from pathlib import Path

import pytest

from tests.experiments.ablation.conftest import OUT, configured, planned


@pytest.fixture(scope="module")
def plan():
  return planned(configured("cross_lingual"), "all", seeds=(0, 1))


def test_rows_differ_in_what_they_learn_from_and_search(plan):
  folder = OUT / "seed-1"
  runs = {str(folder): step for folder, (step, _) in plan.uses.items()}

  def named(bindings, *names):
    return [Path(bindings[name]).relative_to(folder) for name in names]

  rows = {}
  for name, results in plan.results.items():
    assert results[1]["first"].folder == folder / f"evaluations/{name}/first"
    evaluated = results[1]["first"].command.bindings
    assert evaluated["SNAPSHOT"] == str(folder / f"snapshots/{name}")
    run = runs[evaluated["MODEL_DIR"]]
    trained, searched = named(evaluated, "MODEL_DIR", "CORPUS_DIR")
    corpus, examples = named(
      run.command.bindings, "CORPUS_DIR", "PRETRAINING_CORPUS_DIR"
    )
    # It trains on what it searches, and learns from the queries' language.
    assert named(run.builder.bindings, "CORPUS_DIR") == [corpus]
    assert str(examples) == "own_corpus"
    rows[name] = " ".join(map(str, (trained, corpus, searched)))
  assert rows == {
    "realm": "both/pretraining corpus corpus",
    "realm_on_own": "both/pretraining_on_own own_corpus corpus",
    "inverse_cloze": "both/reading_retrieved corpus corpus",
    "own": "own/pretraining own_corpus own_corpus",
    "bm25": "both/pretraining corpus corpus",
  }
  bindings = runs[str(folder / "own/pretraining")].command.bindings
  starts = named(bindings, "INITIAL_CHECKPOINT", "INITIAL_READER")
  assert starts == [Path("own/inverse_cloze"), Path("own/reading_retrieved")]
