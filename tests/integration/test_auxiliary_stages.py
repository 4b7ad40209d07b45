"""A run whose steps are of several stages, by commands."""

import collections
import contextlib
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.errors import RealmError
from realm_jax.training.config import TrainConfig
from realm_jax.training.metric_rows import read_rows
from tests import tiny_world
from tests.integration.commands import Commands, parsed
from tests.json_lines import write_lines

_STEPS = 6
_JUDGED, _MASKED = "judged/loss", "loss"


@pytest.fixture(scope="module")
def settings(world, tmp_path_factory) -> dict:
  people, questions = tiny_world.documents(), tiny_world.questions()
  lines = [
    {
      "query": question["question"],
      "positive_passages": [people[number]],
      "negative_passages": [people[number + 1]],
    }
    for number, question in enumerate(questions)
  ]
  path = write_lines(tmp_path_factory.mktemp("judged") / "f.jsonl", lines)
  return {
    "TRAIN_QUESTIONS": path,
    "UNMASKED_SPAN_KINDS": [],
    "NUM_CANDIDATES": 4,
    "NUM_STEPS": _STEPS,
    "SAVE_EVERY_STEPS": 1,
    "KEEP_CHECKPOINTS": _STEPS,
    "SWAP_SNAPSHOTS": False,
    "JUDGED_SHARE": 0.5,
    "bert.BertConfig.dropout_rate": 0.1,
  }


def _configured(world, settings) -> TrainConfig:
  files = ["gin/runs/pretrain_judged.gin", "tests/integration/tiny.gin"]
  given = {"MODEL_DIR": "r", "CORPUS_DIR": world.corpus_dir, **settings}
  return parsed(TrainConfig, files, given).build(TrainConfig)


def _saved(model_dir: Path, step: int) -> dict:
  with contextlib.closing(CheckpointStore(model_dir)) as store:
    return store.restore(step, items=("retriever", "reader", "optimizer"))


def _differs(one, other) -> bool:
  equal = jax.tree.map(np.array_equal, one, other)
  return not all(jax.tree.leaves(equal))


def test_turns_follow_from_seed_and_step_by_their_shares(world, settings):
  config = _configured(world, {**settings, "JUDGED_SHARE": 0.25})
  turns = [config.stage_of(step) for step in range(2000)]
  counts = collections.Counter(turns)
  assert {*counts} == {0, 1} and 420 < counts[1] < 580
  assert turns == [config.stage_of(step) for step in range(2000)]
  other = _configured(world, {**settings, "JUDGED_SHARE": 0.25, "SEED": 1})
  assert turns != [other.stage_of(step) for step in range(2000)]
  with pytest.raises(
    RealmError, match=r"'judged' retrieves blocks, which only"
  ):
    _configured(world, {**settings, "NUM_HARD_NEGATIVES": 2})
  with pytest.raises(RealmError, match=r"leave some to STAGE"):
    _configured(world, {**settings, "STEPS_AHEAD": 2})


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_each_step_trains_its_own_and_a_resumed_run_repeats_all(
  world, settings, tmp_path
):
  commands, folder = Commands(world), tmp_path / "run"
  with commands.index_builder(folder):
    commands.train("pretrain_judged", folder, **settings)
  rows = [*read_rows(folder)]
  config = _configured(world, settings)
  losses = [[_MASKED, _JUDGED][config.stage_of(s)] for s in range(_STEPS)]
  assert {*losses} == {_MASKED, _JUDGED}
  for row, own in zip(rows, losses, strict=True):
    assert row.keys() & {_MASKED, _JUDGED} == {own}
  for step, own in enumerate(losses):
    before, after = _saved(folder, step), _saved(folder, step + 1)
    if step:  # The rate of the first is zero.
      assert _differs(before["retriever"], after["retriever"])
      assert _differs(before["reader"], after["reader"]) == (own == _MASKED)
    moments = [
      [
        leaf
        for path, leaf in jax.tree.leaves_with_path(saved["optimizer"])
        if "reader" in jax.tree_util.keystr(path) and leaf.ndim
      ]
      for saved in (before, after)
    ]
    assert _differs(*moments) == (own == _MASKED)
  # From a checkpoint of each kind of step.
  for start in {losses.index(_MASKED, 1), losses.index(_JUDGED, 1)}:
    again = tmp_path / f"again{start}"
    for name in (f"checkpoints/{start}", "snapshots"):
      shutil.copytree(folder / name, again / name)
    commands.train("pretrain_judged", again, **settings)
    for row, old in zip(read_rows(again), rows[start:], strict=True):
      names = {_MASKED, _JUDGED, "gradient_norm"} & row.keys()
      assert {n: row[n] for n in names} == {n: old[n] for n in names}
  with pytest.raises(RealmError, match="give AUXILIARY as before"):
    commands.train("pretrain_judged", again, **settings, AUXILIARY=[])
