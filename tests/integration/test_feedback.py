"""A retriever learns from the rewards of what it serves, by the commands."""

import contextlib
import dataclasses
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from harness.jobs import wait_until
from realm_jax.checkpoints.store import locate
from realm_jax.errors import RealmError
from realm_jax.evaluation.run import TrainedRun
from realm_jax.feedback.log import FeedbackLog
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.serving.app import PageApp
from realm_jax.serving.service import FeedbackConfig, Service
from realm_jax.training import compiled_steps
from realm_jax.training.metric_rows import read_rows
from tests import tiny_world
from tests.serving import client

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]

_SETTINGS = {
  "POOL_SIZE": 20,
  "NUM_SHOWN": 2,
  "BATCH_SIZE": 16,
  "START_WEIGHT": 0.01,
  "LEARNING_RATE": 3e-3,
  "WARMUP_STEPS": 5,
  "WEIGHT_DECAY": 0.0,
}


def _reward(block):
  """Whether a block mentions a city that this client likes."""
  return float("Velt" in block["text"])


def _collect(run, directory, *, temperature, rounds, of_lists=False):
  """Asks, and sends rewards; returns the mean reward of a passage."""
  texts = [question["question"] for question in tiny_world.questions()]
  rewards = []
  with contextlib.closing(FeedbackLog(directory)) as log:
    feedback = FeedbackConfig(log, 20, temperature)
    with client.served(PageApp(Service(run, feedback=feedback))) as port:
      for _ in range(rounds):
        reply = client.post(port, "/retrieve", queries=texts, k=2).json()
        sent = []
        for one in reply["results"]:
          own = [_reward(block) for block in one["blocks"]]
          rewarded = sum(own) / len(own) if of_lists else own
          sent.append({"request_id": one["request_id"], "rewards": rewarded})
          rewards += own
        assert client.post(port, "/feedback", feedback=sent).is_success
  return np.mean(rewards)


@pytest.fixture(scope="module")
def log(run, tmp_path_factory):
  directory = tmp_path_factory.mktemp("feedback")
  _collect(run, directory, temperature=2.0, rounds=12)
  return directory


def _train(commands, run, folder, log, **settings):
  commands.train(
    *("feedback", folder),
    FEEDBACK_DIR=log,
    INITIAL_CHECKPOINT=run.model_dir,
    **{**_SETTINGS, **settings},
  )
  return read_rows(folder)


@pytest.mark.parametrize("loss", ["contrastive", "policy_gradient"])
def test_rewards_rise(commands, run, log, tmp_path, loss):
  folder = tmp_path / "run"
  rows = _train(commands, run, folder, log, NUM_STEPS=60, FEEDBACK_LOSS=loss)
  assert rows[-1]["start_divergence"] > rows[0]["start_divergence"]
  store, step = locate(folder)
  with contextlib.closing(store):
    assert store.components(step) == {"retriever", "start_retriever"}
  commands.world.build_snapshot(folder)
  config = dataclasses.replace(
    run.config, model_dir=folder, reader=None, snapshot=None
  )
  trained = TrainedRun.load(config)
  before, after = (
    _collect(one, tmp_path / str(n), temperature=None, rounds=1)
    for n, one in enumerate((run, trained))
  )
  assert after > before + 0.2


def test_what_cannot_be_learned_from_is_refused(commands, run, tmp_path):
  best = tmp_path / "best"
  _collect(run, best, temperature=None, rounds=2)
  with pytest.raises(RealmError, match="--explore_temperature"):
    loss = "policy_gradient"
    _train(
      *(commands, run, tmp_path / "a", best), NUM_STEPS=1, FEEDBACK_LOSS=loss
    )
  lists = tmp_path / "lists"
  _collect(run, lists, temperature=1.0, rounds=2, of_lists=True)
  with pytest.raises(RealmError, match="one for all; send a list of rewards"):
    _train(commands, run, tmp_path / "b", lists, NUM_STEPS=1)
  with pytest.raises(RealmError, match="raise POOL_SIZE"):
    _train(commands, run, tmp_path / "b", best, NUM_STEPS=1, POOL_SIZE=8)
  rows = _train(
    *(commands, run, tmp_path / "c", best),
    NUM_STEPS=1,
    FEEDBACK_LOSS="pairwise",
  )
  assert len(rows) == 1


def test_a_worse_checkpoint_is_not_published(
  commands, run, world, log, tmp_path, caplog
):
  folder = tmp_path / "run"
  settings = {"NUM_STEPS": 60, "FEEDBACK_LOSS": "policy_gradient"}
  _train(commands, run, folder, log, **settings)
  assert world.build_snapshot(folder) == [60]
  # More lists, of which a tenth is held out.
  _collect(run, log, temperature=2.0, rounds=80)
  gate = {"publish_if_better": True, "feedback_dir": log}
  # What the run started from does not know what this client likes.
  world.save_checkpoint(folder, step=61)
  with caplog.at_level("WARNING"):
    assert world.build_snapshot(folder, **gate) == []
  assert "it is not published" in caplog.text
  # Nobody says that it is worse than itself.
  assert world.build_snapshot(folder) == [61]
  world.save_checkpoint(folder, step=62)
  assert world.build_snapshot(folder, **gate) == [62]


def test_devices_share_the_lists(commands, run, log, tmp_path, monkeypatch):
  one, eight = (
    [row["loss"] for row in _train(commands, run, folder, log, NUM_STEPS=2)]
    for folder in _on_one_and_on_all(tmp_path, monkeypatch)
  )
  np.testing.assert_allclose(eight, one, rtol=1e-4)


def _on_one_and_on_all(tmp_path, monkeypatch):
  """Yields a folder for a run on one device, and one for a run on all."""
  yield tmp_path / "one"
  monkeypatch.setattr(compiled_steps, "make_mesh", make_mesh)
  yield tmp_path / "all"


def test_a_run_waits_for_rewards_until_it_is_preempted(commands, run, tmp_path):
  folder = tmp_path / "run"

  def preempt():
    first = folder / "checkpoints" / "0"
    wait_until(first.exists, what="the run waits")
    os.kill(os.getpid(), signal.SIGTERM)

  with ThreadPoolExecutor(1) as thread:
    thread.submit(preempt)
    result = commands.train(
      *("feedback", folder),
      FEEDBACK_DIR=tmp_path / "none",
      INITIAL_CHECKPOINT=run.model_dir,
      **_SETTINGS,
    )
  assert result.preempted and result.step == 0
