"""A retriever learns from a served language model, which comes and goes."""

import contextlib
import os
import shutil
import signal
import threading

import numpy as np
import pytest

from harness.jobs import Job, free_port, gin_command, running, wait_until
from harness.language_model_server import LanguageModelServer
from realm_jax.training.metric_rows import read_rows
from tests.integration.commands import MODEL_FILE, checkpoint_steps, losses

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]
_STEPS = 6


@pytest.fixture(scope="module")
def server():
  with LanguageModelServer() as server:
    yield server


@pytest.fixture(scope="module")
def train(commands, server):
  """`train(folder)`: the same run into a folder, with a cache of its own."""

  def run(folder, **settings):
    settings = {
      "READER_URL": server.url,
      "READER_MODEL": "tiny",
      "TRAIN_QUESTIONS": commands.world.question_file,
      "NUM_READ": 3,
      "NUM_STEPS": _STEPS,
      "SAVE_EVERY_STEPS": 2,
      "KEEP_CHECKPOINTS": 4,
      "SWAP_SNAPSHOTS": False,
      "LEARNING_RATE": 1e-2,
      "SCORE_CACHE": folder / "scores.sqlite",
      **settings,
    }
    with contextlib.ExitStack() as stack:
      if not (folder / "snapshots").exists():
        stack.enter_context(commands.index_builder(folder))
      return commands.train("served_reader", folder, **settings)

  return run


@pytest.fixture(scope="module")
def whole(train, server, tmp_path_factory):
  """A run whose endpoint refuses one of the texts."""
  folder = tmp_path_factory.mktemp("served") / "run"
  server.refused = "Question: where was Ada born?\nAnswer:"
  train(folder)
  server.refused = ""
  return folder


def test_it_trains_the_retriever_alone(whole):
  rows = read_rows(whole)
  assert len(rows) == _STEPS
  assert all(row["reader_requests"] > 0 for row in rows[:1])
  assert sum(row["missing_scores"] for row in rows) > 0
  assert all(np.isfinite(row["loss"]) for row in rows)
  first, last = (
    [r["retriever_loss"] for r in rows[i]] for i in (slice(2), slice(-2, None))
  )
  assert np.mean(last) < np.mean(first)


def test_it_resumes_exactly_from_what_was_recorded(
  whole, train, server, tmp_path
):
  for name in ("checkpoints/2", "snapshots", "served_reader"):
    shutil.copytree(whole / name, tmp_path / name)
  before = len(server.prompts)
  train(tmp_path)
  assert losses(tmp_path) == losses(whole)[2:]
  # Nothing but what it has is asked for.
  assert len(server.prompts) - before <= 2
  rows = read_rows(tmp_path)
  assert [row["missing_scores"] for row in rows] == [
    row["missing_scores"] for row in read_rows(whole)[2:]
  ]


def test_the_endpoint_goes_away_and_comes_back(train, server, tmp_path):
  train(tmp_path / "undisturbed")
  asked = len(server.prompts)

  def disturb() -> None:
    wait_until(lambda: len(server.prompts) > asked + 30, what="requests")
    server.stop()
    is_over.wait(2.0)
    server.start()

  is_over = threading.Event()
  disturbing = threading.Thread(target=disturb)
  disturbing.start()
  result = train(tmp_path / "disturbed")
  disturbing.join()
  assert not result.preempted
  assert losses(tmp_path / "disturbed") == losses(tmp_path / "undisturbed")
  rows = read_rows(tmp_path / "disturbed")
  assert not any(row["missing_scores"] for row in rows)

  def stop() -> None:
    wait_until(lambda: len(server.prompts) > asked + 30, what="requests")
    server.stop()
    is_over.wait(1.0)
    os.kill(os.getpid(), signal.SIGTERM)

  # SIGTERM ends the wait, and the run goes on later.
  asked = len(server.prompts)
  stopping = threading.Thread(target=stop)
  stopping.start()
  result = train(tmp_path / "stopped")
  stopping.join()
  assert result.preempted and result.step < _STEPS
  assert checkpoint_steps(tmp_path / "stopped")[-1] == result.step
  server.start()
  assert not train(tmp_path / "stopped").preempted
  assert losses(tmp_path / "stopped") == losses(tmp_path / "undisturbed")


def test_processes_share_the_work_and_end_together(
  commands, command_environment, quick_jobs, server, tmp_path
):
  environment = {**command_environment, "JAX_PLATFORMS": "cpu"}
  address, folder = f"localhost:{free_port()}", tmp_path / "run"

  def job(process):
    command = gin_command(
      "train",
      ["gin/runs/served_reader.gin", MODEL_FILE],
      f"--coordinator_address={address}",
      *("--num_processes=2", f"--process_id={process}"),
      MODEL_DIR=folder,
      CORPUS_DIR=commands.world.corpus_dir,
      TRAIN_QUESTIONS=commands.world.question_file,
      READER_URL=server.url,
      READER_MODEL="tiny",
      SCORE_CACHE=tmp_path / "scores.sqlite",
      NUM_READ=3,
      NUM_STEPS=_STEPS,
      BATCH_SIZE=4,
      SWAP_SNAPSHOTS=False,
    )
    log = tmp_path / f"{process}.log"
    name = f"process-{process}"
    return Job(name, command, log=log, environment=environment)

  jobs, asked = (job(0), job(1)), len(server.prompts)
  with running(*jobs), commands.index_builder(folder):
    wait_until(
      lambda: len(server.prompts) > asked + 20, what="requests", jobs=jobs
    )
    server.stop()
    # Process 0 waits for the endpoint, or for the other that does.
    os.kill(jobs[1].pid, signal.SIGTERM)
    for one in jobs:
      assert one.wait(60) == 0, one.tail()
      assert "Preempted: checkpoint saved" in one.last_output()
  server.start()
  with running(*jobs):
    for one in jobs:
      assert one.wait(300) == 0, one.tail()
  assert len(read_rows(folder)) == _STEPS
  names = {path.name for path in (folder / "served_reader").iterdir()}
  assert {f"{s:08d}.{p}.npz" for s in range(_STEPS) for p in (0, 1)} <= names
