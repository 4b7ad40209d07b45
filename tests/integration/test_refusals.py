"""What a user gets wrong answers in a line, and loses nothing."""

import contextlib
import shutil

import jax
import numpy as np
import pytest

from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.storage.access import StoreAccessError
from realm_jax.training.metrics import NonFiniteLossError
from tests import tiny_world
from tests.integration.commands import checkpoint_steps

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]


@pytest.fixture(scope="module")
def begun(tmp_path_factory, commands):
  """A pre-training run of one step, with the snapshot of step 0."""
  model_dir = tmp_path_factory.mktemp("begun") / "realm"
  with commands.index_builder(model_dir):
    commands.train("pretrain", model_dir, NUM_STEPS=1, SEED=0)
  return model_dir


@pytest.fixture
def model_dir(begun, tmp_path):
  """A copy of that run, to be spoilt."""
  return shutil.copytree(begun, tmp_path / "realm")


def test_a_run_that_is_over_is_left_as_it_is(commands, model_dir):
  shutil.rmtree(model_dir / "snapshots")
  rows = (model_dir / "metrics.jsonl").read_bytes()
  events = sorted(model_dir.glob("events.*"))
  result = commands.train("pretrain", model_dir, NUM_STEPS=1)
  assert (result.step, result.preempted) == (1, False)
  assert (model_dir / "metrics.jsonl").read_bytes() == rows
  assert sorted(model_dir.glob("events.*")) == events


def test_a_nan_stops_the_run_and_leaves_a_good_checkpoint(commands, model_dir):
  with pytest.raises(NonFiniteLossError, match=r"at step \d") as error:
    commands.train(
      "pretrain",
      model_dir,
      NUM_STEPS=12,
      SAVE_EVERY_STEPS=1,
      LEARNING_RATE=1e30,
    )
  last = checkpoint_steps(model_dir)[-1]
  assert f"the last good checkpoint, step {last} of" in str(error.value)
  # It is good: a run can go on from it.
  with contextlib.closing(CheckpointStore(model_dir)) as store:
    good = store.restore(last, items=("retriever", "reader", "optimizer"))
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(good))


def test_a_snapshot_of_another_corpus(commands, model_dir, tmp_path, world):
  corpus = tiny_world.write_corpus(
    tmp_path,
    tiny_world.documents()[:-1],
    vocab=world.corpus_dir / "vocab.txt",
  )
  with pytest.raises((ValueError, OSError)) as error:
    commands.train("pretrain", model_dir, CORPUS_DIR=corpus, NUM_STEPS=3)
  text = str(error.value)
  assert "\n" not in text
  assert "reads its examples from version 1 of the corpus" in text
  assert "or the corpus was built again" in text
  assert checkpoint_steps(model_dir)[-1] == 1


def test_questions_of_tfds_in_a_bucket_that_is_not_there(
  commands, object_store, tmp_path
):
  # Its name is that of a path, without what says that TFDS reads it.
  with pytest.raises(StoreAccessError, match="there is no bucket gs://nowhere"):
    commands.train(
      "open_qa", tmp_path / "qa", TRAIN_QUESTIONS="tfds:gs://nowhere/tfds"
    )
