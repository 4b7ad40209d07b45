"""What is searched in place of a crashed index."""

import functools
import logging
import shutil
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
from realm_jax.training.goodput import Goodput
from realm_jax.training.stages.inverse_cloze import InverseCloze

pytestmark = pytest.mark.slow

_ERROR = IndexCrashedError("the process that searches scann ended")


def _build(world, model_dir, step, **settings):
  world.save_checkpoint(model_dir, step=step, seed=step, stage=InverseCloze())
  world.build_generation(model_dir, **settings)


@pytest.fixture(scope="module")
def model_dir(world, tmp_path_factory):
  """Generations 0 and 10."""
  model_dir = tmp_path_factory.mktemp("crashed")
  for step in (0, 10):
    _build(world, model_dir, step)
  return model_dir


@pytest.fixture
def follow(request, world):
  """`follow(on_crash, model_dir)`: the schedule of a run."""

  def follow(on_crash, model_dir, *, num_searched=4, **settings):
    load = functools.partial(
      load_generation,
      model_dir / FOLDER,
      corpus=world.corpus,
      **settings,
    )
    schedule = GenerationSchedule(
      load,
      RefreshConfig(on_crash=on_crash),
      model_dir=model_dir,
      num_searched=num_searched,
      every_steps=10,
      decisions=Decisions(
        threading.Event(), num_steps=100, save_every_steps=10
      ),
      goodput=Goodput(),
      watch=functools.partial(GenerationWatcher, poll_seconds=0.01),
    )
    request.addfinalizer(schedule.close)
    return schedule

  return follow


def test_the_generation_before_takes_its_place(follow, model_dir, caplog):
  schedule = follow("last", model_dir)
  schedule.start(10, 10)
  with caplog.at_level(logging.ERROR):
    assert schedule.after_crash(_ERROR).step == 0
  assert "falling back from generation 10 to 0" in caplog.text
  # Without one before, exact search does.
  replacement = schedule.after_crash(_ERROR)
  assert (replacement.step, replacement.index.kind) == (0, "exact")


def test_what_was_damaged_meanwhile_is_not_searched(
  follow, model_dir, tmp_path
):
  spoilt = shutil.copytree(model_dir, tmp_path / "run") / FOLDER
  schedule = follow("exact", spoilt.parent)
  schedule.start(10, 10)
  path = next(spoilt.glob("00000010/*/embeddings-*"))
  data = bytearray(path.read_bytes())
  data[-1] ^= 1
  path.write_bytes(data)
  assert schedule.after_crash(_ERROR).step == 0
  # The watcher writes here meanwhile.
  spoilt.rename(tmp_path / "gone")
  with pytest.raises(IndexCrashedError, match="no generation is left"):
    schedule.after_crash(_ERROR)


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
    follow("fail", tmp_path, beside_training=True).start(0, None)
  schedule = follow("last", tmp_path, beside_training=True)
  first = schedule.start(0, None)
  assert (first.step, first.index.kind) == (0, "exact")
  # Held as it is stored: twice the memory might be too much.
  assert first.manifest.dtype == first.index.vectors.dtype == "bfloat16"
  assert "SIGKILL while it loaded" in caplog.text
  assert "falling back to exact search of generation 0" in caplog.text
  build(10)
  deadline = time.monotonic() + 20
  while (newest := schedule.at(11)).step == 0:
    assert time.monotonic() < deadline, "it is never used"
    time.sleep(0.01)
  assert (newest.step, newest.index.kind) == (10, "exact")
