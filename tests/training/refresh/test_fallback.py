"""What is searched in place of a crashed index."""

import contextlib
import functools
import logging
import shutil
import subprocess
import threading
import time

import numpy as np
import pytest

from realm_jax.generations.follow.loading import load_generation
from realm_jax.generations.follow.watcher import GenerationWatcher
from realm_jax.generations.store import layout
from realm_jax.indexes.protocol import IndexCrashedError, QueryBatch
from realm_jax.indexes.scann.config import ScannConfig
from realm_jax.partitioning.agreement import Agreement
from realm_jax.training.config import RefreshConfig
from realm_jax.training.decisions import Decisions
from realm_jax.training.goodput import Goodput
from realm_jax.training.refresh.fallback import CrashFallback
from realm_jax.training.refresh.schedule import (
  RETRIEVAL_UNAVAILABLE,
  GenerationSchedule,
)
from realm_jax.training.stages.inverse_cloze import InverseCloze

pytestmark = pytest.mark.slow

_ERROR = IndexCrashedError("the process that searches scann ended")


@pytest.fixture(scope="module")
def generations_dir(world, tmp_path_factory):
  """Generations 0 and 10."""
  model_dir = tmp_path_factory.mktemp("crashed")
  for step in (0, 10):
    world.save_checkpoint(model_dir, step=step, seed=step, stage=InverseCloze())
    world.build_generation(model_dir)
  return model_dir / layout.FOLDER


def _fallback(on_crash, generations_dir, world, **settings):
  load = functools.partial(
    load_generation, generations_dir, corpus=world.corpus, **settings
  )
  fallback = CrashFallback(
    on_crash,
    generations_dir=generations_dir,
    load=load,
    agreement=Agreement("loop"),
  )
  return fallback, load


def test_exact_search_finds_the_same_blocks(generations_dir, world):
  fallback, load = _fallback("exact", generations_dir, world)
  crashed = load(10)
  replacement = fallback.replace(crashed, _ERROR)
  assert (replacement.step, replacement.corpus) == (10, crashed.corpus)
  vectors = crashed.vectors(np.arange(8))
  queries = QueryBatch(np.zeros((8, 1), np.int32), vectors)
  np.testing.assert_array_equal(
    replacement.index.search(queries, 5).rows,
    crashed.index.search(queries, 5).rows,
  )


def test_the_generation_before_takes_its_place(generations_dir, world, caplog):
  fallback, load = _fallback("last", generations_dir, world)
  with caplog.at_level(logging.ERROR):
    assert fallback.replace(load(10), _ERROR).step == 0
  assert "falling back from generation 10 to 0" in caplog.text


def test_without_one_before_exact_search_does(generations_dir, world):
  fallback, load = _fallback("last", generations_dir, world)
  replacement = fallback.replace(load(0), _ERROR)
  assert (replacement.step, replacement.index.kind) == (0, "exact")


def test_what_was_damaged_meanwhile_is_not_searched(
  generations_dir, world, tmp_path
):
  spoilt = shutil.copytree(generations_dir, tmp_path / layout.FOLDER)
  fallback, load = _fallback("exact", spoilt, world)
  crashed = load(10)
  path = next(spoilt.glob("00000010/*/embeddings-*"))
  data = bytearray(path.read_bytes())
  data[-1] ^= 1
  path.write_bytes(data)
  assert fallback.replace(crashed, _ERROR).step == 0
  shutil.rmtree(spoilt)
  with pytest.raises(IndexCrashedError, match="no generation is left"):
    fallback.replace(crashed, _ERROR)


@pytest.fixture
def follow(world, tmp_path_factory, monkeypatch):
  """Follows generations of ScaNN's whose processes are killed as they load."""
  model_dir = tmp_path_factory.mktemp("loading")
  start = subprocess.Popen
  watchers = contextlib.ExitStack()

  def start_and_kill(*args, **settings):
    process = start(*args, **settings)
    process.kill()
    return process

  def build(step):
    world.save_checkpoint(model_dir, step=step, seed=step, stage=InverseCloze())
    world.build_generation(model_dir, index=ScannConfig(), dtype="bfloat16")

  def follow(on_crash):
    directory = model_dir / layout.FOLDER
    fallback, _ = _fallback(on_crash, directory, world, beside_training=True)
    watcher = watchers.enter_context(
      GenerationWatcher(directory, fallback.load, poll_seconds=0.01)
    )
    config = RefreshConfig(on_crash=on_crash)
    return GenerationSchedule(
      watcher,
      config,
      model_dir=directory.parent,
      every_steps=10,
      decisions=Decisions(
        threading.Event(), num_steps=100, save_every_steps=10
      ),
      fallback=fallback,
      goodput=Goodput(),
    )

  monkeypatch.setattr("subprocess.Popen", start_and_kill)
  with watchers:
    yield build, follow


def test_what_crashes_as_it_is_loaded_is_searched_exactly(follow, caplog):
  build, follow = follow
  build(0)
  with pytest.raises(
    RETRIEVAL_UNAVAILABLE, match=r"SIGKILL .* cannot be searched"
  ):
    follow("fail").start(0, None)
  schedule = follow("last")
  first = schedule.start(0, None)
  assert (first.step, first.index.kind) == (0, "exact")
  # Held as it is stored: twice the memory might be too much.
  assert first.manifest.dtype == first.index._vectors.dtype == "bfloat16"
  assert "SIGKILL while it loaded" in caplog.text
  assert "falling back to exact search of generation 0" in caplog.text
  build(10)
  deadline = time.monotonic() + 20
  while (newest := schedule.at(11)).step == 0:
    assert time.monotonic() < deadline, "it is never used"
    time.sleep(0.01)
  assert (newest.step, newest.index.kind) == (10, "exact")


def test_a_run_may_be_told_to_fail(generations_dir, world):
  fallback, load = _fallback("fail", generations_dir, world)
  with pytest.raises(
    IndexCrashedError, match="generation 10 cannot be searched"
  ):
    fallback.replace(load(10), _ERROR)
