"""The trainer's side: what it is handed, when, and what it never is."""

import contextlib
import errno
import shutil
import threading
import time

import numpy as np
import pytest

from realm_jax.generations.loading import load_generation
from realm_jax.generations.manifest import GenerationError
from realm_jax.generations.watcher import GenerationWatcher
from realm_jax.storage.local_disk import DiskFullError
from tests.generations.conftest import files_of, flip, publish_one
from tests.processes.jobs import wait_until


@pytest.fixture
def watch(generations_dir, corpus):
  """Opens watchers of the directory and closes them after the test.

  The first loads of one raise its `errors`, and all are noted in `attempts`.
  """
  opened = []

  def open_watcher(errors=(), attempts=None, **settings):
    errors = [*errors]

    def load(step):
      if attempts is not None:
        attempts.append(step)
      if errors:
        raise errors.pop(0)
      return load_generation(generations_dir, step, corpus=corpus)

    opened.append(
      GenerationWatcher(generations_dir, load, poll_seconds=0.01, **settings)
    )
    return opened[-1]

  yield open_watcher
  for watcher in opened:
    watcher.close()


def _newest_is(watcher, step):
  newest = watcher.newest()
  return newest is not None and newest.step == step


def test_wait_for_hands_out_exactly_that_step(watch, generations_dir, corpus):
  publish_one(generations_dir, corpus, 1000)
  watcher = watch()
  with pytest.raises(TimeoutError, match="generation 500 did not appear"):
    watcher.wait_for(500, timeout=0.05)
  later = threading.Timer(0.1, publish_one, (generations_dir, corpus, 500))
  later.start()
  assert watcher.wait_for(500, timeout=10.0).step == 500
  later.join()
  assert watcher.wait_for(1000, timeout=10.0).step == 1000


def test_newest_never_waits_for_a_load(generations_dir, corpus):
  may_load, loading = threading.Event(), threading.Event()

  def slow(step):
    loading.set()
    may_load.wait(10)
    return load_generation(generations_dir, step, corpus=corpus)

  watcher = GenerationWatcher(generations_dir, slow, poll_seconds=0.01)
  with contextlib.closing(watcher):
    publish_one(generations_dir, corpus, 0)
    assert watcher.newest() is None
    assert loading.wait(10)
    start = time.monotonic()
    assert watcher.newest() is None
    assert time.monotonic() - start < 0.5
    may_load.set()
    wait_until(lambda: _newest_is(watcher, 0), what="generation")


def test_a_damaged_generation_is_refused_once_and_used_when_made_again(
  watch, generations_dir, corpus, caplog
):
  publish_one(generations_dir, corpus, 0)
  publish_one(generations_dir, corpus, 500)
  flip(files_of(generations_dir, 500) / "embeddings-00000-of-00003.npy")
  watcher = watch()
  wait_until(lambda: _newest_is(watcher, 0), what="generation")
  with pytest.raises(GenerationError, match="checksum"):
    watcher.wait_for(500, timeout=10.0)
  assert _newest_is(watcher, 0) and not watcher.has_later(0)
  # The builder learns of it.
  assert (generations_dir / "00000500" / "manifest.damaged").exists()
  refusals = [r for r in caplog.records if "500 is not used" in r.getMessage()]
  assert len(refusals) == 1
  # Whoever asks for it again and again does not keep others from being loaded.
  publish_one(generations_dir, corpus, 1000)
  with pytest.raises(GenerationError):
    watcher.wait_for(500, timeout=10.0)
  wait_until(lambda: _newest_is(watcher, 1000), what="generation")
  publish_one(generations_dir, corpus, 500, embed_seconds=9.0)
  assert watcher.wait_for(500, timeout=10.0).manifest.embed_seconds == 9.0


def test_next_loads_the_one_after_the_one_in_use(
  watch, generations_dir, corpus
):
  for step in (0, 500, 1000):
    publish_one(generations_dir, corpus, step)
  loaded = []
  watcher = watch(attempts=loaded, follow="next")
  assert watcher.wait_for(0, timeout=10.0).step == 0
  watcher.in_use(0)
  wait_until(lambda: loaded == [0, 500], what="load")
  time.sleep(0.05)
  assert watcher.wait_for(500, timeout=10.0).step == 500
  assert loaded == [0, 500]


def test_a_generation_that_vanishes_is_no_error(watch, generations_dir, corpus):
  watcher = watch()
  publish_one(generations_dir, corpus, 0)
  wait_until(lambda: _newest_is(watcher, 0), what="generation")
  generation = watcher.newest()
  shutil.rmtree(generations_dir)
  time.sleep(0.05)
  # What is loaded stays usable: its files are mapped.
  assert generation.vectors(np.array([3])).shape == (1, 8)
  publish_one(generations_dir, corpus, 500)
  wait_until(lambda: _newest_is(watcher, 500), what="generation")


def test_a_disk_that_fails_for_a_while_is_waited_for(
  watch, generations_dir, corpus
):
  publish_one(generations_dir, corpus, 0)
  attempts = []
  watcher = watch([OSError("stale file handle")] * 2, attempts)
  assert watcher.wait_for(0, timeout=10.0).step == 0
  assert attempts == [0, 0, 0]


@pytest.mark.parametrize(
  "error, raised",
  [
    (OSError(errno.ENOSPC, "No space left on device"), DiskFullError),
    (ZeroDivisionError(), ZeroDivisionError),
  ],
)
def test_a_full_disk_and_a_bug_are_errors_of_the_run(
  watch, generations_dir, corpus, error, raised
):
  publish_one(generations_dir, corpus, 0)
  with pytest.raises(raised):
    watch([error]).wait_for(0, timeout=10.0)
