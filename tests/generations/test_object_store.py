"""Generations in a bucket: built by several workers, polled and loaded."""

import dataclasses
import re
import secrets
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
import pytest

from benchmarks.runs.object_store import StoreFault
from realm_jax.files.object_store.store_access import StoreAccessError
from realm_jax.generations.building.draft import Draft
from realm_jax.generations.follow.loading import load_generation, load_newest
from realm_jax.generations.follow.watcher import GenerationWatcher
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.leases import Lease, leased_steps
from realm_jax.generations.store.manifest import DamagedGenerationError
from realm_jax.generations.store.publisher import publish, remove
from realm_jax.indexes.random import RandomConfig
from realm_jax.indexes.scann.config import ScannConfig
from tests.generations.builds import CONFIG, build, embed, params_of, save
from tests.generations.conftest import fill, publish_one


@pytest.fixture
def folder() -> str:
  """A folder that no other test of the same store has."""
  return secrets.token_hex(4)


@pytest.fixture
def generations_dir(object_store, folder) -> str:
  return object_store.path(f"{folder}/generations")


def test_what_is_published_comes_back_and_goes(
  object_store, generations_dir, folder, corpus
):
  publish_one(generations_dir, corpus, 0)
  publish_one(generations_dir, corpus, 500)
  assert layout.published_steps(generations_dir) == [0, 500]
  generation = load_newest(generations_dir, corpus=corpus)
  rng = np.random.default_rng(500)
  expected = rng.standard_normal((150, 8)).astype(np.float32)
  np.testing.assert_array_equal(generation.vectors(np.arange(150)), expected)
  publish_one(generations_dir, corpus, 500)
  remove(generations_dir, [0])
  assert layout.published_steps(generations_dir) == [500]
  names = object_store.names(f"{folder}/generations/")
  folders = {name.split("/")[3] for name in names}
  assert len(folders) == 2 and layout.MANIFEST in folders


def _with_many_files(corpus, step):
  def write(directory):
    for i in range(56):
      (directory / f"part-{i}").write_text(str(i))
    return fill(directory, corpus, step)

  return write


def test_a_look_asks_five_times_at_most_whatever_the_number_of_files(
  object_store, generations_dir, corpus
):
  for step in (0, 500, 1000):
    publish(generations_dir, step, _with_many_files(corpus, step))
  with object_store.counted() as requests:
    assert len(manifests.read(f"{generations_dir}/00001000").files) == 60
  assert len(requests) == 1
  watcher = GenerationWatcher(
    generations_dir,
    lambda step: load_generation(generations_dir, step, corpus=corpus),
    poll_seconds=3600.0,
  )
  with watcher:
    assert watcher.wait_for(1000, timeout=60.0).step == 1000
    watcher.in_use(1000)
    watcher.newest()
    _poll(watcher)
    with object_store.counted() as requests:
      _poll(watcher)
  assert len(requests) <= 5, requests


def _poll(watcher):
  with pytest.raises(TimeoutError):
    # It looks at once for what it is asked for, and then not for an hour.
    watcher.wait_for(7, timeout=2.0)


def test_only_what_is_needed_is_copied_and_the_rest_when_it_is_read(
  object_store, generations_dir, corpus
):
  publish_one(generations_dir, corpus, 500)
  with object_store.counted() as requests:
    generation = load_generation(
      generations_dir,
      500,
      corpus=corpus,
      index=RandomConfig(),
      reads_vectors=False,
    )
  assert not [line for line in requests if "embeddings" in line]
  with object_store.counted() as requests:
    generation.vectors(np.array([60, 70]))
  read = [line for line in requests if "embeddings" in line]
  assert {re.findall(r"embeddings-(\d+)", line)[0] for line in read} == {
    "00001"
  }


def test_a_bad_copy_is_made_again_and_two_are_damage(
  object_store, generations_dir, folder, corpus
):
  publish_one(generations_dir, corpus, 500)
  names = object_store.names(f"{folder}/")
  (name,) = [name for name in names if "embeddings-00001" in name]
  content = object_store.read(name)
  load = lambda: load_generation(generations_dir, 500, corpus=corpus)  # noqa: E731
  object_store.inject(StoreFault("cut", "^GET .*embeddings-00001"))
  assert load().step == 500
  object_store.write(name, content[:-1] + bytes([content[-1] ^ 1]))
  with pytest.raises(DamagedGenerationError, match=r"embeddings-00001.*again"):
    load()


def test_a_store_that_is_away_for_a_while_delays_and_harms_nothing(
  object_store, generations_dir, corpus
):
  away = StoreFault("refuse", "generations", times=5)
  object_store.inject(away)
  publish_one(generations_dir, corpus, 500)
  assert object_store.happened() == [5]
  object_store.inject(away)
  generation = load_newest(generations_dir, corpus=corpus)
  assert object_store.happened() == [5]
  rng = np.random.default_rng(500)
  expected = rng.standard_normal((150, 8)).astype(np.float32)
  np.testing.assert_array_equal(generation.vectors(np.arange(150)), expected)


def test_leases_are_as_old_as_the_store_says(generations_dir, monkeypatch):
  lease = Lease(generations_dir)
  lease.hold({500})
  # The clock of this host is an hour ahead of the one that wrote the lease.
  monkeypatch.setattr("time.time", lambda: 1e12)
  assert leased_steps(generations_dir) == {500}
  lease.release()
  assert leased_steps(generations_dir) == set()


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_two_workers_embed_each_shard_once(generations_dir, corpus, tmp_path):
  save(tmp_path, corpus, 0, 500)
  settings = {
    "index": ScannConfig(),
    "config": dataclasses.replace(CONFIG, shard_blocks=10),
    "generations_dir": generations_dir,
  }
  add, added = Draft.add, []

  def add_and_note(draft, shard, *arguments, **named):
    added.append(shard)
    add(draft, shard, *arguments, **named)

  with (
    mock.patch.object(Draft, "add", add_and_note),
    ThreadPoolExecutor(2) as pool,
  ):
    built = pool.map(
      lambda i: build(tmp_path, corpus, worker=f"{i}/2", **settings), range(2)
    )
    assert list(built) == [[500], []]
  assert sorted(added) == list(range(15))
  generation = load_newest(generations_dir, corpus=corpus)
  assert generation.step == 500
  np.testing.assert_allclose(
    generation.vectors(np.arange(150)),
    embed(
      corpus,
      params_of(corpus, 500),
      corpus.gather(np.arange(150), 64),
      "embed_blocks",
    ),
    atol=1e-5,
  )
  # A worker that is alone makes the same bytes.
  alone = settings | {"generations_dir": tmp_path / "alone"}
  assert build(tmp_path, corpus, **alone) == [500]
  together = manifests.read(layout.path_of(generations_dir, 500))
  single = manifests.read(layout.path_of(tmp_path / "alone", 500))
  assert [f for f in single.files if f.path.startswith("embeddings")] == [
    f for f in together.files if f.path.startswith("embeddings")
  ]


def test_a_bucket_that_is_not_there_is_said_before_the_work(
  object_store, corpus, tmp_path
):
  del object_store
  with pytest.raises(StoreAccessError, match="gs://another-bucket"):
    build(tmp_path, corpus, generations_dir="gs://another-bucket/generations")
