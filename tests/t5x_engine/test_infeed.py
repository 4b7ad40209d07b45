"""The infeed of t5x; skipped where t5x is absent."""

import contextlib
import dataclasses

import numpy as np
import pytest

pytest.importorskip("t5x", reason="t5x is absent; `make t5x` adds it")

from t5x import utils

from realm_jax.files.sole_process import SoleProcessError
from realm_jax.t5x_engine.infeed import CandidateInfeed
from realm_jax.t5x_engine.run import EngineRun
from realm_jax.training.checkpointing import LoopState
from realm_jax.training.config import TrainConfig
from tests.integration.commands import Commands

_BATCH = 8


@pytest.fixture
def open_run(world, tmp_path):
  """`open_run(recipe)`: a run of the tiny world that is closed at the end."""
  with contextlib.ExitStack() as stack:

    def run(recipe="inverse_cloze", **bindings):
      settings = {
        "MODEL_DIR": tmp_path / recipe,
        "BATCH_SIZE": _BATCH,
        "NUM_STEPS": 3,
      }
      made = Commands(world).call(TrainConfig, recipe, **settings | bindings)
      opened = EngineRun(made)
      stack.callback(opened.closing.close)
      return opened

    yield run


def _dataset_config(task="inverse_cloze", batch_size=_BATCH):
  return utils.DatasetConfig(
    mixture_or_task_name=task,
    task_feature_lengths={},
    split="train",
    batch_size=batch_size,
    shuffle=True,
    seed=None,
  )


def _part(run, shard, num_shards):
  """The infeed of a process that has one of several shards."""
  rows = np.arange(_BATCH).reshape(num_shards, -1)[shard]
  run.setup = dataclasses.replace(run.setup, own_rows=rows)
  run.resumed = LoopState(positions=rows.astype(np.int64))
  return CandidateInfeed(_dataset_config(), shard, num_shards, run=run)


def test_processes_feed_parts_of_the_same_batches(open_run, tmp_path):
  whole, *shards = (
    _part(open_run(MODEL_DIR=tmp_path / f"{i}of{count}"), i, count)
    for i, count in ((0, 1), (0, 2), (1, 2))
  )
  for _ in range(3):
    batch, *parts = map(next, (whole, *shards))
    assert batch.keys() == parts[0].keys() == whole.element_spec.keys()
    for name, array in batch.items():
      joined = np.concatenate([part[name] for part in parts])
      np.testing.assert_array_equal(joined, array)
      spec = whole.element_spec[name]
      assert (array.shape, array.dtype) == (spec.shape, spec.dtype)


def test_other_data_than_the_runs_are_refused(open_run):
  run = open_run()
  CandidateInfeed(_dataset_config(), 0, 1, run=run)
  for other in ({"task": "open_qa"}, {"batch_size": 4}):
    with pytest.raises(ValueError, match="has other data"):
      CandidateInfeed(_dataset_config(**other), 0, 1, run=run)


def test_other_rows_than_the_checkpoints_have_are_refused(open_run):
  run = open_run()
  with pytest.raises(ValueError, match="choose another MODEL_PARALLELISM"):
    CandidateInfeed(_dataset_config(), 1, 2, run=run)


def test_a_checkpoint_between_two_generations_is_refused(open_run):
  run = open_run("pretrain", NUM_CANDIDATES=4, WAIT_FOR_GENERATIONS=True)
  run.first_step = 5
  with pytest.raises(ValueError, match="continue it with realm_jax"):
    CandidateInfeed(_dataset_config("masked_salient_spans"), 0, 1, run=run)


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"RETRIEVE_ON_DEVICE": True}, "set RETRIEVE_ON_DEVICE = False"),
    ({"NUM_MICROBATCHES": 2}, "set NUM_MICROBATCHES = 1"),
    ({"FSDP": 2}, "have no axis fsdp.*AXIS_RULES"),
  ],
)
def test_what_t5x_has_not_is_refused(open_run, settings, message):
  with pytest.raises(ValueError, match=message):
    open_run("pretrain", NUM_CANDIDATES=4, **settings)


def test_a_second_trainer_is_refused(open_run):
  run = open_run()
  with pytest.raises(SoleProcessError, match="already has a trainer"):
    open_run()
  run.closing.close()
  open_run()
