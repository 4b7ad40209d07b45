"""Publication, removal and drafts, whoever dies meanwhile; the command."""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from etils import epath

from harness.object_store import StoreFault
from realm_jax.snapshots.loading import load_newest, load_snapshot
from realm_jax.snapshots.store import SnapshotStore
from realm_jax.snapshots.vectors import Draft, ShardLayout
from realm_jax.storage.local_disk import DiskFullError
from realm_jax.storage.staging import DamagedFileError
from tests.full_disk import full_disk
from tests.snapshots.builds import save
from tests.snapshots.conftest import (
  TREE,
  files_of,
  flip,
  publish_one,
  random_vectors,
)

# Publishes step 500 beside a sound step 0, once as the first and once in place
# of another, and is killed at its first call into the file system, at its
# 19th, … until one survives; and at every other of its last calls, which
# publish.
_KILLED_AT_EVERY_CALL = """
import sys
from pathlib import Path
from realm_jax.corpus.store import Corpus
from tests.snapshots.conftest import publish_one
from tests.killed_at_each_call import survives

root, corpus = Path(sys.argv[1]), Corpus.open(sys.argv[2])
def attempt(kind, calls):
  directory = root / kind / f"{calls:03d}"
  publish_one(directory, corpus, 0)
  if kind == "replacing":
    publish_one(directory, corpus, 500, embed_seconds=7.0)
  return survives(lambda: publish_one(directory, corpus, 500), calls=calls)

for parity, kind in enumerate(("first", "replacing")):
  calls = 0
  while not attempt(kind, calls):
    calls += 18
  for last in range(calls - 17 + parity, calls, 2):
    attempt(kind, last)
"""


def _sound(snapshots_dir):
  """The published steps; each of them must be sound to the last byte."""
  store = SnapshotStore(snapshots_dir)
  for step in store.steps():
    store.verify(step)
  return store.steps()


@pytest.fixture(scope="module")
def killed(tmp_path_factory, corpus, command_server):
  """The directories of all attempts: `first` and `replacing`."""
  root = tmp_path_factory.mktemp("killed")
  done = command_server.run(
    [sys.executable, "-c", _KILLED_AT_EVERY_CALL, root, corpus.source]
  )
  assert done.returncode == 0, done.stderr
  return root


@pytest.mark.slow
@pytest.mark.parametrize("kind, before", [("first", None), ("replacing", 7.0)])
def test_a_builder_killed_at_any_call_leaves_what_was_or_what_will_be(
  killed, corpus, kind, before
):
  found = []
  for path in sorted((killed / kind).iterdir()):
    is_there = 500 in _sound(path)
    store = SnapshotStore(path)
    found.append(store.manifest(500).embed_seconds if is_there else None)
    # Starting again is all it takes, and nothing stays behind.
    publish_one(path, corpus, 500)
    assert _sound(path) == [0, 500]
    assert len(list((path / "00000500").iterdir())) == 2
  is_new = [seconds == 1.0 for seconds in found]
  assert is_new == sorted(is_new) and set(found) == {before, 1.0}


def test_a_disk_that_is_full_at_any_file_is_said_and_harms_nothing(
  snapshots_dir, corpus
):
  publish_one(snapshots_dir, corpus, 0, index=TREE)
  files = SnapshotStore(snapshots_dir).manifest(0).files
  said = "500 was not written: free some"
  for size in sorted({file.size for file in files})[::2]:
    with full_disk(size - 1), pytest.raises(DiskFullError, match=said):
      publish_one(snapshots_dir, corpus, 500, index=TREE)
    assert _sound(snapshots_dir) == [0]
  publish_one(snapshots_dir, corpus, 500, index=TREE)
  assert _sound(snapshots_dir) == [0, 500]


def test_the_files_of_a_removed_snapshot_stay_for_a_while(
  snapshots_dir, corpus
):
  for step in range(7):
    publish_one(snapshots_dir, corpus, step)
  loaded = load_snapshot(snapshots_dir, 1, corpus=corpus)
  store = SnapshotStore(snapshots_dir)
  store.remove([0, 1, 2])
  assert _sound(snapshots_dir) == [3, 4, 5, 6]
  # Whoever has it loaded can still read all of it.
  expected = random_vectors(corpus.num_blocks, 1)
  np.testing.assert_array_equal(loaded.embeddings[0:150], expected)
  store.remove_drafts()
  assert store.path(1).exists()
  # Not more than three of them take space, and none for more than a day.
  store.remove([3])
  left = [step for step in range(7) if store.path(step).exists()]
  assert left == [1, 2, 3, 4, 5, 6]
  yesterday = time.time() - 90_000
  os.utime(store.path(2) / "manifest.removed", (yesterday, yesterday))
  store.remove_old_files()
  assert not store.path(2).exists()
  # One that is published again is not removed.
  publish_one(snapshots_dir, corpus, 1)
  store.remove_old_files(max_removed=0)
  assert _sound(snapshots_dir) == [1, 4, 5, 6]
  assert not store.path(3).exists()


def test_a_store_that_is_away_for_a_while_delays_and_harms_nothing(
  object_store, corpus, tmp_path, monkeypatch
):
  snapshots_dir = object_store.path(f"{tmp_path.name}/snapshots")
  away = StoreFault("refuse", "snapshots", times=5)
  object_store.inject(away)
  publish_one(snapshots_dir, corpus, 500)
  assert object_store.happened() == [5]
  # As on another host, the cache is empty.
  monkeypatch.setenv("REALM_JAX_CACHE_DIR", str(tmp_path / "cache"))
  object_store.inject(away)
  snapshot = load_newest(snapshots_dir, corpus=corpus)
  assert object_store.happened() == [5]
  expected = random_vectors(150, 500)
  np.testing.assert_array_equal(snapshot.vectors(np.arange(150)), expected)


_LAYOUT = ShardLayout.of(40, 4, dtype="float32", max_rows=8)


def _embed(draft, shards):
  for shard in shards:
    rows = draft.layout.rows(shard)
    vectors = np.repeat(rows[:, None], 4, axis=1).astype(np.float32)
    draft.add(shard, vectors)


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_damaged_shard_is_dropped_and_embedded_again(tmp_path, is_cut):
  draft = Draft(epath.Path(tmp_path), _LAYOUT)
  _embed(draft, range(5))
  records = draft.records()
  path = Path(draft.folder / records[3].path)
  if is_cut:
    path.write_bytes(path.read_bytes()[:-1])
  else:
    flip(path)
  with pytest.raises(DamagedFileError, match=path.name):
    draft.verified()
  assert {*draft.records()} == {0, 1, 2, 4}
  _embed(draft, [3])
  draft.verified()
  assert draft.records() == records


@pytest.mark.slow
def test_the_command(tmp_path, corpus, command_server):
  snapshots_dir = tmp_path / "snapshots"
  for step in (0, 4, 8, 12, 16):
    publish_one(snapshots_dir, corpus, step)
  save(tmp_path, corpus, 8, snapshots=[4])

  def run(*arguments):
    command = [sys.executable, "-m", "realm_jax.list_snapshots", *arguments]
    return command_server.run([*command, f"--model_dir={tmp_path}"])

  # What is being built is not a snapshot yet.
  (snapshots_dir / "00000020").mkdir()
  flip(next(files_of(snapshots_dir, 12).glob("emb*.npy")))
  verified = run("verify", f"--json={tmp_path}/found.json")
  assert verified.returncode == 1, verified.stderr
  assert "1 of 5 cannot be used: [12]" in verified.stdout
  found = json.loads((tmp_path / "found.json").read_text())
  assert [one["step"] for one in found] == [0, 4, 8, 12, 16]
  assert [one["step"] for one in found if one["problem"]] == [12]
  assert [one["step"] for one in found if one["checkpoints"] == [8]] == [4]
  assert {one["manifest"]["num_blocks"] for one in found} == {150}
  dry = run("prune", "--keep=1", "--dry_run")
  assert "would remove 0, 8, 12\n" in dry.stdout, dry.stderr
  # A run that waits may go on from any of its checkpoints.
  save(tmp_path, corpus, 12, snapshots=[8], lag_steps=4)
  pruned = run("prune", "--keep=1")
  assert "removed 0\n" in pruned.stdout, pruned.stderr
  assert SnapshotStore(snapshots_dir).steps() == [4, 8, 12, 16]
