"""Which bindings a row has, and which runs the rows share."""

import dataclasses
from pathlib import Path

import pytest

from realm_jax.ablation.data import GivenData
from realm_jax.ablation.plan import (
  READING_RETRIEVED,
  RECIPES,
  AblationConfig,
  Pretraining,
)
from realm_jax.ablation.rows import ROWS, RowError, select

_OUT = Path("out")
_FOLDER = "gin/experiments/demo"


@pytest.fixture(scope="module")
def whole():
  """Most rows with two seeds, long enough for every refresh."""
  files = {
    name: [f"{_FOLDER}/{name}.gin"] for name in (*RECIPES, READING_RETRIEVED)
  }
  files["pretraining"] = [f"{_FOLDER}/pretrain.gin"]
  config = AblationConfig(
    files,
    GivenData("corpus", "train.jsonl", "test.jsonl", "sentences.jsonl"),
    num_steps={"pretraining": 40_000},
  )
  some = ("candidates_8", "candidates_16", "refresh_50", "refresh_400")
  rows = select(["table2", "choices", *some, "refresh_never"])
  ((_, plan),) = config.plans(rows, seeds=range(2), output_dir=_OUT)
  return plan


def _run(plan, name, seed=0):
  (run,) = (r for r in plan.runs if (r.name, r.seed) == (name, seed))
  return run


def _trained(plan):
  return [run.name for run in plan.runs if run.step.command.module == "train"]


def test_rows_are_chosen_by_name_or_part_and_realm_is_always_among_them():
  assert [row.name for row in select(["baseline"])] == ["realm", "baseline"]
  table = [row.name for row in select(["table2"])]
  assert len(table) == 7
  assert table[0] == "realm"
  assert select(["all"]) == list(ROWS)
  with pytest.raises(RowError, match=r"no row 'baselin'.*baseline"):
    select(["baselin"])


def test_the_rows_share_what_is_the_same(whole):
  assert _trained(whole)[:7] == [
    "inverse_cloze",
    "reading",
    "reading_retrieved",
    "pretraining/realm",
    "open_qa/realm",
    "baseline_reader",
    "open_qa/realm_retriever",
  ]
  realm = ["realm", "realm_retriever", "realm_encoder"]
  assert _run(whole, "pretraining/realm").rows[:3] == realm
  assert _run(whole, "reading").rows == [*whole.results]
  # What is fine-tuned is evaluated by its answers, and its retriever was before
  # by questions and by sentences.
  trained = _trained(whole)
  tuned = [name for name in trained if name.startswith("open_qa/")]
  assert len(whole.runs) - len(trained) == 3 * len(tuned)
  assert whole.results["baseline"][1]["answers"] == (
    _OUT / "seed-1/evaluations/baseline/answers"
  )


def test_what_a_run_starts_from_comes_before_it(whole):
  made = set()
  for run in whole.runs:
    bindings = run.step.command.bindings
    sources = {bindings.get(f"INITIAL_{of}") for of in ("CHECKPOINT", "READER")}
    if "OUTPUT_DIR" in bindings:
      sources.add(bindings["MODEL_DIR"])
    assert made >= sources - {None}, run.name
    made.add(str(run.step.folder))


def test_a_row_starts_from_the_parts_that_it_names(whole):
  def parts(name):
    bindings = _run(whole, name, seed=1).step.command.bindings
    assert bindings["SEED"] == 1
    return tuple(
      bindings[name] and Path(bindings[name]).relative_to(_OUT / "seed-1")
      for name in ("INITIAL_CHECKPOINT", "INITIAL_READER")
    )

  realm, ict = Path("pretraining/realm"), Path("inverse_cloze")
  reader = Path("baseline_reader")
  assert parts("open_qa/realm") == (realm, realm)
  assert parts("open_qa/realm_retriever") == (realm, reader)
  assert parts("open_qa/realm_encoder") == (ict, realm)
  assert parts("open_qa/baseline") == (ict, reader)
  unpretrained = parts("pretraining/no_inverse_cloze")
  assert unpretrained == (None, Path("reading_retrieved"))


def test_the_baseline_reader_has_read_as_many_masked_examples(whole):
  realm = whole.configs["realm"]
  read = []
  for name in ("baseline_reader", "reading_retrieved"):
    with _run(whole, name).step.command.configured() as configured:
      read.append(configured())
  baseline, before = read
  num_examples = [
    config.num_steps * config.data.batch_size
    for config in (baseline, realm, before)
  ]
  assert num_examples[0] == num_examples[1] + num_examples[2]
  assert baseline.data.batch_size == realm.data.batch_size
  assert baseline.optimizer.learning_rate == realm.optimizer.learning_rate
  assert baseline.data.task == realm.data.task
  for config in read:
    source = config.checkpoints.source_of("reader")
    assert source == str(_OUT / "seed-0/reading")


def test_each_row_changes_what_its_title_says(whole):
  configs = {
    name: config
    for name, config in whole.configs.items()
    if f"pretraining/{name}" in _trained(whole)
  }
  assert configs["random_tokens"].data.task == "masked_random_tokens"
  assert configs["random_spans"].data.task == "masked_random_spans"
  assert not configs["no_null"].stage.null_block
  assert not configs["trivial_retrieval"].stage.drop_source
  assert configs["joint_loss"].stage.loss_form == "joint"
  assert configs["candidates_16"].stage.num_candidates == 16
  every = configs["realm"].checkpoints.save_every_steps
  assert configs["realm"].refresh_every_steps == every
  assert configs["stale_index"].refresh_every_steps == 30 * every
  assert configs["stale_index"].checkpoints == configs["realm"].checkpoints
  assert configs["refresh_400"].refresh_every_steps == 400
  assert configs["refresh_never"].refresh_every_steps >= 40_000
  assert whole.never_refreshed == {"refresh_never"}
  # One of each sweep equals REALM, and is not trained again.
  assert not {"per_token_loss", f"refresh_{every}"} & configs.keys()
  assert "candidates_8" not in configs
  for name, config in configs.items():
    assert config.waits, name
    sidecar = _run(whole, f"pretraining/{name}").step.sidecar
    assert sidecar is not None
    assert sidecar.bindings["MODE"] == "every"
    every = sidecar.bindings["REFRESH_EVERY_STEPS"]
    assert every == config.refresh.refresh_every_steps


def test_a_run_without_a_second_generation_is_never_refreshed(whole):
  # That of checkpoint 1500 is due at step 1550, the last being num_steps - 1.
  for num_steps, never in ((1550, True), (1551, False)):
    config = whole.configs["stale_index"]
    config = dataclasses.replace(config, num_steps=num_steps)
    assert Pretraining({}, config).never_refreshed == never
