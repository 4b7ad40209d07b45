"""What is taken over from an earlier generation, and what of it is refused."""

import logging

import pytest

from realm_jax.files import npy
from realm_jax.generations.building.base_generation import (
  block_keys,
  find_base_generation,
  previous_index,
)
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.publisher import publish
from tests.generations.conftest import files_of, fill, make_corpus, publish_one


@pytest.fixture
def other(tmp_path):
  """As many blocks, others."""
  return make_corpus(tmp_path / "other", num_blocks=150, seed=1)


def _publish(generations_dir, corpus, step, *, kind="scann"):
  """A generation that tells its blocks, with a file of an index."""

  def write(directory):
    npy.save(directory / "block_keys.npy", block_keys(corpus))
    (directory / kind).mkdir()
    (directory / kind / "tree").write_bytes(b"a tree")
    return fill(
      directory,
      corpus,
      step,
      index_kind=kind,
      model="model",
      block_keys="block_keys.npy",
    )

  publish(generations_dir, step, write)
  return manifests.read(layout.path_of(generations_dir, step))


def _flip(path, place=-1):
  data = bytearray(path.read_bytes())
  data[place] ^= 1
  path.write_bytes(data)


def test_that_of_the_step_itself_is_taken_where_the_corpus_has_changed(
  generations_dir, corpus, other
):
  def found(step, of):
    base = find_base_generation(
      generations_dir, step, corpus=of, model="model", dtype="float32"
    )
    return base and base.step

  for step in (0, 500):
    _publish(generations_dir, corpus, step)
  assert found(500, corpus) == 0
  assert found(500, other) == 500
  assert found(499, other) == 0
  # This one does not tell its blocks; an earlier one's vectors are older.
  publish_one(generations_dir, corpus, 1000, model="model")
  assert found(1000, other) is None
  assert found(1500, other) == 500


def test_an_index_is_started_from_one_that_is_whole(
  generations_dir, corpus, caplog
):
  publish_one(generations_dir, corpus, 0)
  _publish(generations_dir, corpus, 500)
  path = files_of(generations_dir, 500) / "scann"
  assert _previous(generations_dir, 1000, kind="scann") == path
  assert previous_index(generations_dir, 1000, kind="exact") is None
  assert previous_index(generations_dir, 500, kind="scann") is None
  # Of the vectors it takes nothing.
  _flip(path.parent / "embeddings-00001-of-00003.npy")
  assert _previous(generations_dir, 1000, kind="scann") == path
  _flip(path / "tree")
  with caplog.at_level(logging.WARNING, logger="absl"):
    assert previous_index(generations_dir, 1000, kind="scann") is None
  assert "tree does not match its checksum" in caplog.text


def _previous(generations_dir, step, *, kind):
  found = previous_index(generations_dir, step, kind=kind)
  return None if found is None else found[1]
