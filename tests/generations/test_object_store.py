"""Generations in a bucket: built by several workers, polled and loaded."""

import re
import secrets

import numpy as np
import pytest
from etils import epath

from benchmarks.runs.object_store import StoreFault
from realm_jax.generations.loading import load_generation, load_newest
from realm_jax.generations.store import GenerationStore
from realm_jax.generations.vectors import Draft
from realm_jax.indexes.random import RandomConfig
from tests.generations.builds import build, save
from tests.generations.conftest import publish_one, random_vectors


@pytest.fixture
def folder() -> str:
  """A folder that no other test of the same store has."""
  return secrets.token_hex(4)


@pytest.fixture
def generations_dir(object_store, folder) -> str:
  return object_store.path(f"{folder}/generations")


@pytest.fixture
def change_host(tmp_path, monkeypatch):
  """Goes on with an empty cache, as on another host."""

  def change() -> None:
    cache = tmp_path / secrets.token_hex(4)
    monkeypatch.setenv("REALM_JAX_CACHE_DIR", str(cache))

  return change


def test_only_what_is_needed_is_copied_and_the_rest_when_it_is_read(
  object_store, generations_dir, corpus, change_host
):
  publish_one(generations_dir, corpus, 500)
  change_host()
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


def test_a_store_that_is_away_for_a_while_delays_and_harms_nothing(
  object_store, generations_dir, corpus, change_host
):
  away = StoreFault("refuse", "generations", times=5)
  object_store.inject(away)
  publish_one(generations_dir, corpus, 500)
  assert object_store.happened() == [5]
  change_host()
  object_store.inject(away)
  generation = load_newest(generations_dir, corpus=corpus)
  assert object_store.happened() == [5]
  expected = random_vectors(150, 500)
  np.testing.assert_array_equal(generation.vectors(np.arange(150)), expected)


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_a_builder_goes_on_with_shards_of_one_that_was_killed(
  generations_dir, corpus, tmp_path, monkeypatch
):
  save(tmp_path, corpus, 500)
  settings = {"shard_blocks": 10, "generations_dir": generations_dir}
  add, added = Draft.add, []

  def add_and_note(draft, shard, *arguments, **named):
    if len(added) == 6:
      raise KeyboardInterrupt
    added.append(shard)
    add(draft, shard, *arguments, **named)

  monkeypatch.setattr(Draft, "add", add_and_note)
  with pytest.raises(KeyboardInterrupt):
    build(tmp_path, corpus, **settings)
  (folder,) = epath.Path(generations_dir).glob("00000500/*")
  added.clear()
  added += [-1] * 7
  assert build(tmp_path, corpus, **settings) == [500]
  assert added[7:] == list(range(6, 15))
  store = GenerationStore(generations_dir)
  # A builder that wakes after another took its place writes elsewhere.
  assert store.manifest(500).folder != folder.name
  alone = settings | {"generations_dir": tmp_path / "alone"}
  assert build(tmp_path, corpus, **alone) == [500]
  single = GenerationStore(tmp_path / "alone").manifest(500)
  assert single.files == store.manifest(500).files
  assert load_newest(generations_dir, corpus=corpus).step == 500
