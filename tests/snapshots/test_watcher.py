"""The trainer's side: what it is handed, when, and what it never is."""

import contextlib
import errno
import shutil
import signal
import sys
import threading
import time

import numpy as np
import pytest

from harness.jobs import wait_until
from realm_jax.snapshots.loading import load_snapshot
from realm_jax.snapshots.manifest import DamagedSnapshotError, SnapshotError
from realm_jax.snapshots.store import SnapshotStore
from realm_jax.snapshots.watcher import SnapshotWatcher
from realm_jax.storage.local_disk import DiskFullError
from tests.snapshots.conftest import files_of, flip, publish_one


@pytest.fixture
def watch(snapshots_dir, corpus):
  """Opens watchers of the directory and closes them after the test.

  The first loads of one raise its `errors`, and all are noted in `attempts`.
  """
  opened = []

  def open_watcher(errors=(), attempts=None, directory=None, **settings):
    errors, directory = [*errors], directory or snapshots_dir
    settings = {"poll_seconds": 0.01} | settings

    def load(step):
      if attempts is not None:
        attempts.append(step)
      if errors:
        raise errors.pop(0)
      return load_snapshot(directory, step, corpus=corpus)

    opened.append(SnapshotWatcher(directory, load, **settings))
    return opened[-1]

  yield open_watcher
  for watcher in opened:
    watcher.close()


def _newest_is(watcher, step):
  newest = watcher.newest()
  return newest is not None and newest.step == step


def test_wait_for_hands_out_exactly_that_step(watch, snapshots_dir, corpus):
  publish_one(snapshots_dir, corpus, 1000)
  watcher = watch()
  with pytest.raises(TimeoutError, match="snapshot 500 did not appear"):
    watcher.wait_for(500, timeout=0.05)
  later = threading.Timer(0.1, publish_one, (snapshots_dir, corpus, 500))
  later.start()
  assert watcher.wait_for(500, timeout=10.0).step == 500
  later.join()
  assert watcher.wait_for(1000, timeout=10.0).step == 1000


def test_newest_never_waits_for_a_load(snapshots_dir, corpus):
  may_load, loading = threading.Event(), threading.Event()

  def slow(step):
    loading.set()
    may_load.wait(10)
    return load_snapshot(snapshots_dir, step, corpus=corpus)

  watcher = SnapshotWatcher(snapshots_dir, slow, poll_seconds=0.01)
  with contextlib.closing(watcher):
    publish_one(snapshots_dir, corpus, 0)
    assert watcher.newest() is None
    assert loading.wait(10)
    start = time.monotonic()
    assert watcher.newest() is None
    assert time.monotonic() - start < 0.5
    may_load.set()
    wait_until(lambda: _newest_is(watcher, 0), what="snapshot")


def test_a_damaged_snapshot_is_refused_once_and_used_when_made_again(
  watch, snapshots_dir, corpus, caplog
):
  publish_one(snapshots_dir, corpus, 0)
  publish_one(snapshots_dir, corpus, 500)
  flip(next(files_of(snapshots_dir, 500).glob("embeddings-*.npy")))
  watcher = watch()
  wait_until(lambda: _newest_is(watcher, 0), what="snapshot")
  with pytest.raises(SnapshotError, match="checksum"):
    watcher.wait_for(500, timeout=10.0)
  assert _newest_is(watcher, 0)
  # The builder learns of it.
  assert (snapshots_dir / "00000500" / "manifest.damaged").exists()
  refusals = [r for r in caplog.records if "500 is not used" in r.getMessage()]
  assert len(refusals) == 1
  # Whoever asks for it again and again does not keep others from being loaded.
  publish_one(snapshots_dir, corpus, 1000)
  with pytest.raises(SnapshotError):
    watcher.wait_for(500, timeout=10.0)
  wait_until(lambda: _newest_is(watcher, 1000), what="snapshot")
  publish_one(snapshots_dir, corpus, 500, embed_seconds=9.0)
  assert watcher.wait_for(500, timeout=10.0).manifest.embed_seconds == 9.0


def test_a_snapshot_that_vanishes_is_no_error(watch, snapshots_dir, corpus):
  watcher = watch()
  publish_one(snapshots_dir, corpus, 0)
  wait_until(lambda: _newest_is(watcher, 0), what="snapshot")
  snapshot = watcher.newest()
  shutil.rmtree(snapshots_dir)
  time.sleep(0.05)
  # What is loaded stays usable: its files are mapped.
  assert snapshot.vectors(np.array([3])).shape == (1, 8)
  publish_one(snapshots_dir, corpus, 500)
  wait_until(lambda: _newest_is(watcher, 500), what="snapshot")


def test_a_disk_that_fails_for_a_while_is_waited_for(
  watch, snapshots_dir, corpus
):
  publish_one(snapshots_dir, corpus, 0)
  attempts = []
  watcher = watch([OSError("stale file handle")] * 2, attempts)
  assert watcher.wait_for(0, timeout=10.0).step == 0
  assert attempts == [0, 0, 0]


def test_a_full_disk_and_a_bug_are_errors_of_the_run(
  watch, snapshots_dir, corpus
):
  publish_one(snapshots_dir, corpus, 0)
  full = OSError(errno.ENOSPC, "No space left on device")
  for error, raised in (
    (full, DiskFullError),
    (ZeroDivisionError(), ZeroDivisionError),
  ):
    with pytest.raises(raised):
      watch([error]).wait_for(0, timeout=10.0)


def test_one_snapshot_beside_the_one_in_use_is_in_memory(
  watch, snapshots_dir, corpus
):
  publish_one(snapshots_dir, corpus, 0)
  loaded = []
  watcher = watch(attempts=loaded)
  assert watcher.wait_for(0, timeout=10.0).step == 0
  watcher.in_use(0)
  for step in (500, 1000, 1500):
    publish_one(snapshots_dir, corpus, step)
    wait_until(lambda: _newest_is(watcher, 500), what="snapshot")
    time.sleep(0.05)
  # The others wait until it is used, or cannot be.
  assert loaded == [0, 500]
  watcher.in_use(500)
  wait_until(lambda: _newest_is(watcher, 1500), what="snapshot")
  assert {*watcher._loaded} == {500, 1500}
  watcher.reject(1500, SnapshotError("not here"))
  # The newest of the others takes its place.
  wait_until(lambda: _newest_is(watcher, 1000), what="snapshot")
  publish_one(snapshots_dir, corpus, 2000)
  watcher.in_use(1000)
  wait_until(lambda: _newest_is(watcher, 2000), what="snapshot")
  assert {*watcher._loaded} == {1000, 2000}


def test_a_run_that_waits_for_nothing_asks_a_bucket_once_a_poll(
  watch, object_store, corpus, tmp_path
):
  directory = object_store.path(f"{tmp_path.name}/snapshots")
  listing = "/snapshots/&"
  publish_one(directory, corpus, 0)
  leader = watch(directory=directory, poll_seconds=0.2)
  follower = watch(directory=directory, poll_seconds=0.2, follow="none")
  for watcher in (leader, follower):
    assert watcher.wait_for(0, timeout=30.0).step == 0
    watcher.in_use(0)
  time.sleep(0.5)

  start = time.monotonic()
  with object_store.counted() as requests:
    for _ in range(100):  # Steps of the run.
      leader.newest()
      follower.request(0)
      time.sleep(0.01)
  assert all(listing in request for request in requests)
  assert 1 < len(requests) <= (time.monotonic() - start) / 0.2 + 2
  # What the leader names is asked for by its name, and then no more.
  publish_one(directory, corpus, 500)
  with object_store.counted() as requests:
    wait_until(lambda: follower.request(500) is not None, what="snapshot")
  assert not [request for request in requests if listing in request]


_KILLED_AS_IT_LOADS = """
import os, signal, sys
from realm_jax.snapshots.watcher import SnapshotWatcher

def load(step):
  os.kill(os.getpid(), signal.SIGKILL)

watcher = SnapshotWatcher(sys.argv[1], load, process=1, poll_seconds=0.01)
watcher.wait_for(500, timeout=30.0)
"""


@pytest.mark.slow
def test_what_kills_the_process_that_loads_it_twice_is_damaged(
  watch, snapshots_dir, corpus, command_server
):
  store = SnapshotStore(snapshots_dir)
  for step in (0, 500):
    publish_one(snapshots_dir, corpus, step)
  command = [sys.executable, "-c", _KILLED_AS_IT_LOADS, str(snapshots_dir)]
  for _ in range(2):
    assert command_server.run(command).returncode == -signal.SIGKILL
  attempts = []
  watcher = watch(process=1, attempts=attempts, follow="newest")
  with pytest.raises(DamagedSnapshotError, match="killed twice"):
    watcher.wait_for(500, timeout=30.0)
  wait_until(lambda: _newest_is(watcher, 0), what="snapshot")
  assert attempts == [0]
  # Its files have their checksums, and the builder makes it again even so.
  assert store.remove_damaged(marked=True) == [500]
  publish_one(snapshots_dir, corpus, 500)
  assert watcher.wait_for(500, timeout=30.0).step == 500
  watcher.in_use(500)
  trial = store.path(500) / "manifest.trial-1"
  assert trial.exists()
  watcher.was_searched(500)
  wait_until(lambda: not trial.exists(), what="end of the trial")


def test_a_load_that_fails_or_is_not_used_is_no_kill(
  watch, snapshots_dir, corpus
):
  publish_one(snapshots_dir, corpus, 0)
  for _ in range(4):
    watcher = watch([OSError("stale file handle")] * 3)
    assert watcher.wait_for(0, timeout=10.0).step == 0
    watcher.close()
    wait_until(
      lambda: not [*snapshots_dir.glob("*/manifest.trial-0")], what="end"
    )
