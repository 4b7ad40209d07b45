"""Trainer and builder as processes: killed, stopped, and started again."""

import contextlib
import dataclasses
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from harness.faults import verdict
from harness.faults.disturbed import Disturbed, Fault, finish
from harness.jobs import (
  Job,
  free_port,
  gin_command,
  running,
  wait_until,
)
from harness.pretraining import Run
from realm_jax import supervisor
from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.snapshots.store import SnapshotStore, directory_of
from realm_jax.storage.sole_process import SoleProcessError, sole_process
from tests.integration.commands import MODEL_FILE

pytestmark = [
  pytest.mark.slow,
  pytest.mark.usefixtures("quick_jobs", "one_device"),
]

_STEPS, _SAVE_EVERY = 20, 4
# The builder's line when it has built what there is.
_WAITING = "waiting for the next checkpoint"


@pytest.fixture(scope="module")
def run(tmp_path_factory, world, command_environment, quick_jobs):
  """`run(name, **environment)`: the same run in another folder.

  Supervisors restart its processes where they have `supervised=True`.
  """
  directory = tmp_path_factory.mktemp("interrupted")

  def make(name, *, supervised=False, **environment):
    environment = {**command_environment, **environment}
    if supervised:
      del environment[supervisor.VARIABLE]
    return Run(
      directory=directory / name,
      corpus_dir=world.corpus_dir,
      model=MODEL_FILE,
      num_steps=_STEPS,
      save_every_steps=_SAVE_EVERY,
      environment=environment,
    )

  return make


@pytest.fixture(scope="module")
def unbroken(run) -> Run:
  """A run that nothing disturbs; it logs what it compiles."""
  unbroken = run("unbroken", JAX_LOG_COMPILES="1")
  assert finish(unbroken)["problems"] == []
  return unbroken


@dataclasses.dataclass
class Broken:
  """A run with a kill of both, two polite stops, and what was seen."""

  run: Run
  kill: dict[str, Any] | None
  stopped: dict[str, Any]


@pytest.fixture(scope="module")
def broken(run) -> Broken:
  run = run("broken", supervised=True)
  seconds = np.random.default_rng(0).uniform(0, 2)
  planned = Fault("kill both", _SAVE_EVERY, seconds, seed=0)
  stopped = {}
  with Disturbed(run) as here:
    trainer, builder = here.jobs["trainer"], here.jobs["builder"]
    kill = here.inject(planned)
    # A builder that was restarted handles SIGTERM once it is imported.
    wait_until(
      lambda: _WAITING in builder.last_output().partition("restarting it")[2],
      what="builder that waits",
      jobs=(trainer, builder),
    )
    # With the builder gone, the trainer soon waits for a snapshot.
    stopped["builder"] = builder.terminate()
    waits_before = run.last_snapshot() + 2 * _SAVE_EVERY
    wait_until(
      lambda: run.last_checkpoint() >= waits_before - _SAVE_EVERY,
      what="checkpoint",
      jobs=(trainer,),
    )
    stopped["trainer"] = trainer.terminate()
    stopped["left_at"] = run.last_checkpoint()
    stopped["due_at"] = waits_before
    trainer.start()
    builder.start()
    here.complete()
  return Broken(run, kill, stopped)


def test_a_kill_changes_nothing(unbroken, broken):
  assert broken.kill is not None
  # Nobody was needed.
  for job in (broken.run.trainer(), broken.run.builder()):
    assert len(verdict.restarts(job)) == 1
  assert len(verdict.curve(broken.run)) == _STEPS
  assert verdict.differences(unbroken, broken.run) == []
  # No half snapshot is ever seen.
  assert verdict.refusals(broken.run) == []
  store = SnapshotStore(directory_of(broken.run.model_dir))
  for step in store.steps():
    store.verify(step)
  assert verdict.problems(broken.run) == []
  assert "damaged" not in broken.run.builder().log.read_text()


def test_sigterm_saves_where_it_is_and_leaves_well(broken):
  stopped = broken.stopped
  assert (stopped["trainer"], stopped["builder"]) == (0, 0)
  # It came while the trainer was waiting, or on its way there.
  assert stopped["left_at"] <= stopped["due_at"]
  log = broken.run.trainer().log.read_text()
  assert "Preempted: checkpoint saved at step" in log
  assert f"continuing from checkpoint {stopped['left_at']} of" in log


def test_a_swap_compiles_nothing(unbroken):
  log = unbroken.trainer().log.read_text()
  before, *after = log.split("replaces 0 at step")
  assert "Finished XLA compilation of jit(train_step)" in before
  assert after
  assert after[0].count(" replaces ") == 2
  assert "Finished XLA compilation" not in after[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_sigterm_while_a_checkpoint_is_saved_leaves_it_whole(
  commands, tmp_path, number
):
  saved = tmp_path / "checkpoints"

  def stop() -> None:
    # The first checkpoint, under its temporary or its own name.
    wait_until(lambda: bool(list(saved.glob("1*"))), what="checkpoint")
    os.kill(os.getpid(), number)

  with ThreadPoolExecutor(1) as thread:
    stopping = thread.submit(stop)
    result = commands.train(
      "inverse_cloze", tmp_path, NUM_STEPS=100, SAVE_EVERY_STEPS=1
    )
    stopping.result()
  assert result.preempted
  assert 0 < result.step < 100
  with contextlib.closing(CheckpointStore(tmp_path)) as store:
    assert store.latest() == result.step
    store.restore(result.step, items=("retriever", "optimizer", "loop"))


def test_two_processes_go_on_when_one_is_killed(
  world, command_environment, tmp_path
):
  environment = {**command_environment, "JAX_PLATFORMS": "cpu"}
  environment["XLA_FLAGS"] = environment.get("XLA_FLAGS", "").replace(
    "--xla_force_host_platform_device_count=8", ""
  )
  del environment[supervisor.VARIABLE]
  address = f"localhost:{free_port()}"

  def job(process):
    command = gin_command(
      "train",
      ["gin/runs/inverse_cloze.gin", MODEL_FILE],
      f"--coordinator_address={address}",
      *("--num_processes=2", f"--process_id={process}"),
      "--heartbeat_timeout_seconds=10",
      MODEL_DIR=tmp_path / "run",
      CORPUS_DIR=world.corpus_dir,
      NUM_STEPS=80,
      SAVE_EVERY_STEPS=10,
      BATCH_SIZE=4,
    )
    name = f"process-{process}"
    log = tmp_path / f"{name}.log"
    return Job(name, command, log=log, environment=environment)

  jobs = job(0), job(1)
  checkpoints = CheckpointStore(tmp_path / "run")
  with running(*jobs):
    wait_until(
      lambda: checkpoints.steps()[-1:] >= [10],
      what="checkpoint",
      jobs=(*jobs,),
    )
    os.kill(jobs[1].worker(), signal.SIGKILL)
    for one in jobs:
      assert one.wait(300) == 0, one.tail()
  for one in jobs:
    assert verdict.restarts(one)
    assert "continuing from checkpoint" in one.log.read_text()


def test_a_second_trainer_is_refused(commands, tmp_path):
  with (
    sole_process(tmp_path),
    pytest.raises(SoleProcessError, match=f"^{tmp_path} already has a trainer"),
  ):
    commands.train("reading", tmp_path, NUM_STEPS=1)
  assert not (tmp_path / "metrics.jsonl").exists()
