"""What a reader accepts, and what it refuses."""

import shutil
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from realm_jax.indexes.protocol import QueryBatch
from realm_jax.indexes.random import RandomConfig
from realm_jax.indexes.scann import ScannConfig
from realm_jax.snapshots.loading import load_newest, load_snapshot
from realm_jax.snapshots.manifest import (
  DamagedSnapshotError,
  SnapshotError,
  from_checked_json,
  to_checked_json,
)
from realm_jax.snapshots.store import MANIFEST, SnapshotStore
from tests.snapshots.conftest import (
  DIM,
  TREE,
  files_of,
  flip,
  publish_one,
  random_vectors,
)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_published_comes_back_whole(snapshots_dir, corpus, dtype):
  publish_one(snapshots_dir, corpus, 500, dtype=dtype)
  snapshot = load_snapshot(snapshots_dir, 500, corpus=corpus)
  stored = random_vectors(150, 500).astype(np.dtype(dtype))
  np.testing.assert_array_equal(snapshot.embeddings[45:120], stored[45:120])
  vectors = stored.astype(np.float32)
  rows = np.array([[0, 149, 7], [49, 50, 100]])
  np.testing.assert_array_equal(snapshot.vectors(rows), vectors[rows])
  np.testing.assert_array_equal(
    snapshot.query_params["tower"]["kernel"], np.full((2, 3), 500)
  )
  found = snapshot.index.search(QueryBatch.of_vectors(vectors[[3, 77]]), 1)
  scores = vectors[[3, 77]] @ vectors.T
  np.testing.assert_array_equal(found.rows[:, 0], scores.argmax(axis=1))
  other = load_snapshot(snapshots_dir, 500, corpus=corpus, index=RandomConfig())
  assert (other.index.kind, other.num_blocks) == ("random", 150)


@pytest.mark.parametrize(
  "changes, message",
  [
    ({"corpus_fingerprint": "0" * 64}, "of another corpus"),
    ({"num_blocks": 151}, "its manifest says"),
    ({"folder": "../.."}, "no path below its folder"),
    ({"index_kind": "psychic"}, "no index is called 'psychic'"),
    ({"dim": DIM + 1}, "its manifest says"),
  ],
)
def test_a_manifest_that_cannot_be_is_refused(
  snapshots_dir, corpus, changes, message
):
  publish_one(snapshots_dir, corpus, 500)
  path = snapshots_dir / "00000500" / MANIFEST
  values = from_checked_json(path.read_text())
  path.write_text(to_checked_json(values | changes))
  with pytest.raises(SnapshotError, match=message):
    load_snapshot(snapshots_dir, 500, corpus=corpus)


def test_the_newest_that_is_sound_is_taken(snapshots_dir, corpus):
  for step in (0, 500, 1000):
    publish_one(snapshots_dir, corpus, step)
  flip(next(files_of(snapshots_dir, 1000).glob("embeddings-*.npy")))
  assert load_newest(snapshots_dir, corpus=corpus).step == 500
  shutil.rmtree(snapshots_dir)
  with pytest.raises(SnapshotError, match="build_index --once"):
    load_newest(snapshots_dir, corpus=corpus)


def test_a_vector_that_is_not_finite_is_refused(snapshots_dir, corpus):
  vectors = random_vectors(150, 0)
  vectors[102, 1] = np.nan
  with pytest.raises(SnapshotError, match="vector of block 102"):
    publish_one(snapshots_dir, corpus, 500, vectors=vectors)


# --- With every kind of file, cut, flipped and removed anywhere -------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory, corpus) -> Path:
  """Snapshot 0, and snapshot 500 with every kind of file."""
  directory = tmp_path_factory.mktemp("damage") / "snapshots"
  publish_one(directory, corpus, 0)
  publish_one(directory, corpus, 500, index=TREE)
  return directory


@pytest.fixture
def published(whole, tmp_path) -> Path:
  """A copy, to be spoilt."""
  return shutil.copytree(whole, tmp_path / "snapshots")


@pytest.mark.slow
def test_cut_or_flipped_anywhere_it_is_refused(published, corpus):
  rng = np.random.default_rng(0)
  snapshot = load_snapshot(published, 500, corpus=corpus)
  assert (snapshot.index.kind, snapshot.oldest_step) == ("scann", 500)
  folder = files_of(published, 500)
  files = [folder / file.path for file in snapshot.manifest.files]
  for path in (folder.parent / MANIFEST, *files):
    content = path.read_bytes()
    # A manifest without its last newline is whole.
    last = len(content) - (path.name == MANIFEST)
    for place in (0, last - 1, int(rng.integers(last)), None):
      if place is None:
        flip(path, rng.integers(last))
      else:
        path.write_bytes(content[:place])
      with pytest.raises(DamagedSnapshotError):
        load_snapshot(published, 500, corpus=corpus)
      path.write_bytes(content)
  assert load_snapshot(published, 500, corpus=corpus).step == 500


def test_a_newer_format_is_no_damage(published):
  path = published / "00000500" / MANIFEST
  values = from_checked_json(path.read_text())
  path.write_text(to_checked_json({**values, "format_version": 6}))
  store = SnapshotStore(published)
  with pytest.raises(SnapshotError, match="format version 6") as error:
    store.manifest(500)
  assert not isinstance(error.value, DamagedSnapshotError)
  assert store.remove_damaged() == []
  path.write_text("{")
  assert store.remove_damaged() == [500]
  assert store.steps() == [0]


@pytest.mark.parametrize(
  "harm",
  [
    lambda files: shutil.rmtree(files),
    lambda files: flip(files / "scann" / "scann_config.pb", 39),
  ],
)
def test_what_goes_while_its_index_is_loaded_is_called_damaged(
  published, corpus, harm
):
  load = ScannConfig.load

  def harm_and_load(config, directory, *arguments, **settings):
    harm(files_of(published, 500))
    return load(config, directory, *arguments, **settings)

  with (
    mock.patch.object(ScannConfig, "load", harm_and_load),
    pytest.raises(DamagedSnapshotError, match=r"is missing|checksum"),
  ):
    load_snapshot(published, 500, corpus=corpus)
