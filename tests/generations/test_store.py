"""Publication, removal and drafts, whoever dies meanwhile."""

import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from realm_jax.generations.loading import load_generation
from realm_jax.generations.manifest import DamagedGenerationError
from realm_jax.generations.store import MANIFEST, GenerationStore
from realm_jax.generations.vectors import ShardLayout
from realm_jax.storage.local_disk import DiskFullError
from realm_jax.storage.staging import DamagedFileError
from tests.full_disk import full_disk
from tests.generations.conftest import (
  files_of,
  flip,
  publish_one,
)

# Publishes step 500 beside a sound step 0, once as the first and once in place
# of another, and is killed at its first call into the file system, at its
# 13th, … until one survives; and at each of its last calls, which publish.
# Then it does no more than embed shards, each of which takes some twenty calls.
_KILLED_AT_EVERY_CALL = """
import sys
from pathlib import Path
from realm_jax.corpus.store import Corpus
from tests.generations.conftest import publish_one
from tests.generations.test_store import embed_missing
from tests.killed_at_each_call import survives

root, corpus = Path(sys.argv[1]), Corpus.open(sys.argv[2])
def attempt(kind, calls):
  directory = root / kind / f"{calls:03d}"
  publish_one(directory, corpus, 0)
  if kind == "replacing":
    publish_one(directory, corpus, 500, embed_seconds=7.0)
  return survives(lambda: publish_one(directory, corpus, 500), calls=calls)

for kind in ("first", "replacing"):
  calls = 0
  while not attempt(kind, calls):
    calls += 12
  for last in range(max(calls - 14, 1), calls):
    if last % 12:
      attempt(kind, last)

calls = 0
while not survives(
  lambda: embed_missing(root / "draft" / f"{calls:03d}"), calls=calls
):
  calls += 12
"""


def _sound(generations_dir):
  """The published steps; each of them must be sound to the last byte."""
  store = GenerationStore(generations_dir)
  for step in store.steps():
    store.verify(step)
  return store.steps()


@pytest.fixture(scope="module")
def killed(tmp_path_factory, corpus, command_server):
  """The directories of all attempts: `first`, `replacing` and `draft`."""
  root = tmp_path_factory.mktemp("killed")
  done = command_server.run(
    [sys.executable, "-c", _KILLED_AT_EVERY_CALL, root, corpus.source]
  )
  assert done.returncode == 0, done.stderr
  return root


@pytest.mark.slow
def test_a_builder_killed_at_any_call_publishes_nothing_or_everything(
  killed, corpus
):
  attempts = sorted((killed / "first").iterdir())
  assert len(attempts) > 15
  outcomes = {tuple(_sound(path)) for path in attempts}
  assert outcomes == {(0,), (0, 500)}
  assert _sound(attempts[0]) == [0] and _sound(attempts[-1]) == [0, 500]
  for path in attempts:
    # Starting again is all it takes, and nothing stays behind.
    publish_one(path, corpus, 500)
    assert _sound(path) == [0, 500]
    assert len(list((path / "00000500").iterdir())) == 2


@pytest.mark.slow
def test_a_builder_killed_while_it_replaces_leaves_the_old_or_the_new(killed):
  attempts = sorted((killed / "replacing").iterdir())
  found = []
  for path in attempts:
    assert _sound(path) == [0, 500]
    found.append(GenerationStore(path).manifest(500).embed_seconds)
  assert sorted(found, reverse=True) == found and set(found) == {7.0, 1.0}


def test_a_full_disk_is_said_and_harms_nothing(generations_dir, corpus):
  publish_one(generations_dir, corpus, 0)
  said = "500 was not written: free some"
  with full_disk(1000), pytest.raises(DiskFullError, match=said):
    publish_one(generations_dir, corpus, 500)
  assert _sound(generations_dir) == [0]


def test_drafts_go_unless_they_are_needed(generations_dir, corpus):
  publish_one(generations_dir, corpus, 500)
  for folder in ("00000100/aaaa", "00000500/bbbb", "00000800/eeee"):
    (generations_dir / folder).mkdir(parents=True)
  GenerationStore(generations_dir).remove_drafts(but=800)
  assert _sound(generations_dir) == [500]
  assert sorted(p.name for p in generations_dir.iterdir()) == [
    "00000500",
    "00000800",
  ]
  assert not (generations_dir / "00000500" / "bbbb").exists()


def test_the_files_of_a_removed_generation_stay_for_a_while(
  generations_dir, corpus
):
  for step in range(7):
    publish_one(generations_dir, corpus, step)
  loaded = load_generation(generations_dir, 1, corpus=corpus)
  store = GenerationStore(generations_dir)
  store.remove([0, 1, 2])
  assert _sound(generations_dir) == [3, 4, 5, 6]
  # Whoever has it loaded can still read all of it.
  assert loaded.with_exact_search().step == 1
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
  publish_one(generations_dir, corpus, 1)
  store.remove_old_files(max_removed=0)
  assert _sound(generations_dir) == [1, 4, 5, 6]
  assert not store.path(3).exists()


def test_reported_damage_is_looked_at_once(generations_dir, corpus):
  for step in (0, 500):
    publish_one(generations_dir, corpus, step)
  store = GenerationStore(generations_dir)
  flip(files_of(generations_dir, 500) / "embeddings-00000-of-00003.npy")
  assert store.remove_damaged(marked=True) == []
  for step in (0, 500):
    store.mark_damaged(step)
  assert store.remove_damaged(marked=True) == [500]
  assert _sound(generations_dir) == [0]
  assert [p.name for p in store.path(0).glob("manifest.*")] == [MANIFEST]


def test_imported_vectors_are_never_removed(generations_dir, corpus):
  publish_one(generations_dir, corpus, 0, identity="imported")
  flip(files_of(generations_dir, 0) / "embeddings-00000-of-00003.npy")
  store = GenerationStore(generations_dir)
  assert store.remove_damaged() == []
  with pytest.raises(DamagedGenerationError):
    store.verify(0)


# --- Drafts ---------------------------------------------------------------

_LAYOUT = ShardLayout.of(40, 4, dtype="float32", max_rows=8)


def _draft(parent):
  return GenerationStore(parent).draft(500, "abc", _LAYOUT)


def _put(draft, shard):
  rows = draft.layout.rows(shard)
  vectors = np.repeat(rows[:, None], 4, axis=1).astype(np.float32)
  # Of two ages, so that a shard has a file of steps, too.
  draft.add(shard, vectors, 500 - rows % 2, seconds=1.0)


def embed_missing(parent):
  """Embeds what is missing."""
  draft = _draft(parent)
  for shard in {*range(5)} - {*draft.records()}:
    _put(draft, shard)


def _contents(parent):
  """The bytes of the vectors, by file."""
  staged, records = _draft(parent).verified()
  assert [record.shard.rows for record in records] == [8] * 5
  paths = [file.path for record in records for file in record.files]
  return {path: (staged.root / path).read_bytes() for path in paths}


@pytest.mark.parametrize("what", ["vectors", "steps", "cut", "gone"])
def test_a_damaged_shard_is_dropped_and_embedded_again(tmp_path, what):
  embed_missing(tmp_path)
  wanted = _contents(tmp_path)
  draft = _draft(tmp_path)
  assert len(draft.records()) == 5
  name = _LAYOUT.name(3)
  if what == "steps":
    name = name.replace("embeddings", "steps")
  path = Path(draft.folder / name)
  if what == "gone":
    path.unlink()
  elif what == "cut":
    path.write_bytes(path.read_bytes()[:-1])
  else:
    flip(path)
  with pytest.raises(DamagedFileError, match=name):
    draft.verified()
  assert {*draft.records()} == {0, 1, 2, 4}
  _put(draft, 3)
  assert _contents(tmp_path) == wanted


def test_half_an_index_goes_and_a_whole_one_is_recorded(tmp_path):
  embed_missing(tmp_path)
  draft = _draft(tmp_path)
  (draft.folder / "scann").mkdir()
  (draft.folder / "scann" / "half").write_text("half")
  root = draft.verified()[0].root
  (root / "scann" / "below").mkdir(parents=True)
  for path in ("scann/tree", "scann/below/leaves"):
    (root / path).write_text("whole")
  recorded = [file.path for file in draft.record_others(root)]
  assert recorded == ["scann/below/leaves", "scann/tree"]


@pytest.mark.slow
def test_killed_at_any_call_it_goes_on_with_what_is_there(killed, tmp_path):
  embed_missing(tmp_path)
  wanted = _contents(tmp_path)
  attempts = sorted((killed / "draft").iterdir())
  assert len(attempts) > 6
  kept = []
  for path in attempts:
    kept.append(len(_draft(path).records()))
    embed_missing(path)
    assert _contents(path) == wanted
    assert not [n for n in os.listdir(_draft(path).folder) if n[0] == "."]
  # What was done is kept, up to the shard at which it died.
  assert kept == sorted(kept)
  assert kept[0] == 0 and kept[-1] == 5 and len(set(kept)) == 6
