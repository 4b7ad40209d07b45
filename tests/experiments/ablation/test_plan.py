"""Which bindings a row has, and which runs the rows share."""

import pytest

from experiments.ablation.rows import select
from realm_jax.errors import RealmError
from tests.experiments.ablation.conftest import (
  OUT,
  configured,
  planned,
  steps,
)


@pytest.fixture(scope="module")
def whole():
  """Most rows with two seeds, long enough for every refresh."""
  config = configured("demo", "NUM_STEPS = {'pretraining': 40_000}")
  some = ("candidates_8", "candidates_16", "refresh_50", "refresh_400")
  names = ("table2", "choices", *some, "refresh_never")
  return planned(config, *names, seeds=(0, 1))


def _trained(plan):
  named = steps(plan).items()
  return [name for name, step in named if step.command.module == "train"]


def test_rows_are_chosen_by_name_or_part_and_realm_is_always_among_them():
  rows = configured("demo").all_rows()
  chosen = [row.name for row in select(["baseline"], rows)]
  assert chosen == ["realm", "baseline"]
  assert {row.part for row in select(["table2"], rows)} == {"table2"}
  with pytest.raises(RealmError, match=r"no row 'baselin'.*baseline"):
    select(["baselin"], rows)


def test_a_wrong_field_of_a_row_is_named():
  config = configured("demo", "ROWS = [{'name': 'realm', 'titel': 'REALM'}]")
  with pytest.raises(RealmError, match=r"'titel': change ROWS"):
    config.all_rows()


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
  folder = OUT / "seed-0"
  assert whole.uses[folder / "reading"][1] == [*whole.results]
  realm = ["realm", "realm_retriever", "realm_encoder"]
  assert whole.uses[folder / "pretraining/realm"][1][:3] == realm


def test_a_row_starts_from_the_parts_that_it_names_which_come_before(whole):
  earlier, parts = set(), {}
  for folder, (step, _) in whole.uses.items():
    bindings = step.command.bindings
    starts = bindings.get("INITIAL_CHECKPOINT"), bindings.get("INITIAL_READER")
    evaluated = bindings["MODEL_DIR"] if "OUTPUT_DIR" in bindings else None
    assert earlier >= {*starts, evaluated} - {None}, folder
    earlier.add(str(folder))
    if folder.is_relative_to(OUT / "seed-1"):
      parts[str(folder.relative_to(OUT / "seed-1"))] = [
        start and start.partition("-1/")[2] for start in starts
      ]
  realm, ict = "pretraining/realm", "inverse_cloze"
  assert parts["open_qa/realm"] == [realm, realm]
  assert parts["open_qa/realm_retriever"] == [realm, "baseline_reader"]
  assert parts["open_qa/realm_encoder"] == [ict, realm]
  assert parts["open_qa/baseline"] == [ict, "baseline_reader"]
  assert parts["pretraining/no_inverse_cloze"] == [None, "reading_retrieved"]


def test_the_baseline_reader_has_read_as_many_masked_examples(whole):
  names = ("baseline_reader", "pretraining/realm", "reading_retrieved")
  configs = [steps(whole)[name].command.build() for name in names]
  baseline, realm, _ = configs
  num_examples = [one.num_steps * one.data.batch_size for one in configs]
  assert num_examples[0] == num_examples[1] + num_examples[2]
  assert baseline.data.batch_size == realm.data.batch_size


def test_each_row_changes_what_its_title_says(whole):
  configs = {
    name: one.config
    for name, one in whole.pretrainings.items()
    if f"pretraining/{name}" in _trained(whole)
  }
  assert configs["random_tokens"].data.task == "masked_random_tokens"
  assert not configs["no_null"].stage.null_block
  assert not configs["trivial_retrieval"].stage.drop_source
  assert configs["joint_loss"].stage.loss_form == "joint"
  assert configs["candidates_16"].stage.num_candidates == 16
  every = configs["realm"].checkpoints.save_every_steps
  assert configs["realm"].refresh_every_steps == every
  assert configs["stale_index"].refresh_every_steps == 30 * every
  never = {n for n, one in whole.pretrainings.items() if one.never_refreshed}
  assert never == {"refresh_never"}
  # One of each sweep equals REALM, and is not trained again.
  equal = {"per_token_loss", f"refresh_{every}", "candidates_8"}
  assert not equal & configs.keys()
  for name, config in configs.items():
    assert config.waits, name
    builder = steps(whole)[f"pretraining/{name}"].builder.bindings
    assert builder["MODE"] == "every"
    every = config.refresh.refresh_every_steps
    assert builder["REFRESH_EVERY_STEPS"] == every
