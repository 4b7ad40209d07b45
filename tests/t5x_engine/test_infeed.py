"""The infeed of t5x; skipped where t5x is absent."""

import contextlib
import dataclasses

import numpy as np
import pytest

pytest.importorskip("t5x", reason="t5x is absent; `make t5x` adds it")

from t5x import utils

from realm_jax.files.sole_process import SoleProcessError
from realm_jax.t5x_engine.infeed import CandidateInfeed, get_dataset
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


def _part(run, rows):
  """The infeed of a process that has these rows."""
  run.setup = dataclasses.replace(run.setup, own_rows=rows)
  run.first = (0, LoopState(positions=rows.astype(np.int64)))
  return CandidateInfeed(run)


def test_processes_feed_parts_of_the_same_batches(open_run, tmp_path):
  rows = np.arange(_BATCH)
  whole, *shards = (
    _part(open_run(MODEL_DIR=tmp_path / name), own)
    for name, own in (("whole", rows), ("first", rows[:4]), ("last", rows[4:]))
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
  get_dataset(_dataset_config(), 0, 1, run=run)
  for other in ({"task": "open_qa"}, {"batch_size": 4}):
    with pytest.raises(ValueError, match="has other data"):
      get_dataset(_dataset_config(**other), 0, 1, run=run)


def test_other_rows_than_the_checkpoints_have_are_refused(open_run):
  run = open_run()
  with pytest.raises(ValueError, match="choose another MODEL_PARALLELISM"):
    get_dataset(_dataset_config(), 1, 2, run=run)


def test_a_checkpoint_between_two_generations_is_refused(open_run):
  run = open_run("pretrain", NUM_CANDIDATES=4, WAIT_FOR_GENERATIONS=True)
  run.first = (5, LoopState(positions=40 + np.arange(_BATCH)))
  with pytest.raises(ValueError, match="continue it with realm_jax"):
    get_dataset(_dataset_config("masked_salient_spans"), 0, 1, run=run)


def test_search_in_the_step_and_micro_batches_are_refused(open_run):
  with pytest.raises(ValueError, match="RETRIEVE_ON_DEVICE = False"):
    open_run("pretrain", NUM_CANDIDATES=4, RETRIEVE_ON_DEVICE=True)
  with pytest.raises(ValueError, match="set NUM_MICROBATCHES = 1"):
    open_run("pretrain", NUM_CANDIDATES=4, NUM_MICROBATCHES=2)


def test_fsdp_and_a_second_trainer_are_refused(open_run):
  with pytest.raises(ValueError, match="have no axis fsdp"):
    open_run(FSDP=2)
  run = open_run()
  with pytest.raises(SoleProcessError, match="already has a trainer"):
    open_run()
  run.closing.close()
  open_run()
