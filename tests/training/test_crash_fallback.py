"""What is searched in place of a crashed index."""

import functools
import subprocess
import threading
import time

import pytest

from realm_jax.generations.loading import load_generation
from realm_jax.generations.store import FOLDER
from realm_jax.generations.watcher import GenerationWatcher
from realm_jax.indexes.protocol import (
  IndexCrashedError,
  RetrievalUnavailableError,
)
from realm_jax.indexes.scann.config import ScannConfig
from realm_jax.training.config import RefreshConfig
from realm_jax.training.decisions import Decisions
from realm_jax.training.generations import GenerationSchedule
from realm_jax.training.stages.inverse_cloze import InverseCloze

pytestmark = pytest.mark.slow


@pytest.fixture
def follow(request, world, tmp_path):
  """`follow(on_crash)`: the schedule of a run in `tmp_path`."""

  def follow(on_crash="exact"):
    load = functools.partial(
      load_generation,
      tmp_path / FOLDER,
      corpus=world.corpus,
      beside_training=True,
    )
    schedule = GenerationSchedule(
      load,
      RefreshConfig(on_crash=on_crash),
      model_dir=tmp_path,
      num_searched=4,
      every_steps=10,
      decisions=Decisions(
        threading.Event(), num_steps=100, save_every_steps=10
      ),
      watch=functools.partial(GenerationWatcher, poll_seconds=0.01),
    )
    request.addfinalizer(schedule.close)
    return schedule

  return follow


def _build(world, model_dir, step, **settings):
  world.save_checkpoint(model_dir, step=step, seed=step, stage=InverseCloze())
  world.build_generation(model_dir, **settings)


def test_what_was_damaged_meanwhile_is_not_searched(world, follow, tmp_path):
  _build(world, tmp_path, 0)
  schedule = follow()
  schedule.start(0, 0)
  error = IndexCrashedError("the process that searches scann ended")
  assert schedule.after_crash(error).index.kind == "exact"
  path = next((tmp_path / FOLDER).glob("00000000/*/embeddings-*"))
  data = bytearray(path.read_bytes())
  data[-1] ^= 1
  path.write_bytes(data)
  with pytest.raises(IndexCrashedError, match="cannot be searched exactly"):
    schedule.after_crash(error)


def test_what_crashes_as_it_is_loaded_is_searched_exactly(
  world, follow, tmp_path, monkeypatch, caplog
):
  start = subprocess.Popen

  def start_and_kill(*args, **settings):
    process = start(*args, **settings)
    process.kill()
    return process

  monkeypatch.setattr("subprocess.Popen", start_and_kill)
  build = functools.partial(
    _build, world, tmp_path, index=ScannConfig(), dtype="bfloat16"
  )
  build(0)
  with pytest.raises(
    RetrievalUnavailableError, match=r"SIGKILL .* cannot be searched"
  ):
    follow("fail").start(0, None)
  schedule = follow()
  first = schedule.start(0, None)
  assert (first.step, first.index.kind) == (0, "exact")
  # Held as it is stored: twice the memory might be too much.
  assert first.manifest.dtype == first.index.vectors.dtype == "bfloat16"
  assert "SIGKILL while it loaded" in caplog.text
  build(10)
  deadline = time.monotonic() + 20
  while (newest := schedule.at(11)).step == 0:
    assert time.monotonic() < deadline, "it is never used"
    time.sleep(0.01)
  assert (newest.step, newest.index.kind) == (10, "exact")
