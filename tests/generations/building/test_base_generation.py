"""What is taken over from an earlier generation, and what of it is refused."""

import logging
from unittest import mock

import numpy as np
import pytest

from realm_jax.files import npy, remote
from realm_jax.generations.building.base_generation import (
  block_keys,
  find_base_generation,
  open_base_vectors,
  previous_index,
)
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.manifest import DamagedGenerationError
from realm_jax.generations.store.publisher import publish
from tests.generations.conftest import fill, make_corpus, publish_one


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

  assert publish(generations_dir, step, write)
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


@pytest.mark.parametrize("place", [3, 80, -1], ids=["magic", "header", "key"])
def test_damaged_keys_are_refused(generations_dir, corpus, other, place):
  base = _publish(generations_dir, corpus, 500)
  _flip(generations_dir / "00000500" / "block_keys.npy", place)
  with (
    pytest.raises(DamagedGenerationError, match=r"block_keys.npy does not"),
    open_base_vectors(generations_dir, base, block_keys(other), corpus=other),
  ):
    pass


def test_what_is_copied_from_an_object_store_is_what_is_verified(
  generations_dir, corpus
):
  base = _publish(generations_dir, corpus, 500)
  name = "embeddings-00001-of-00003.npy"
  path_type = type(layout.path_of(generations_dir, 500))
  copy = path_type.copy

  def copy_and_flip(source, target, **settings):
    copied = copy(source, target, **settings)
    if target.name == name:
      _flip(target)
    return copied

  with (
    mock.patch.object(remote, "is_remote", return_value=True),
    mock.patch.object(path_type, "copy", copy_and_flip),
    pytest.raises(DamagedGenerationError, match=f"00000500/{name} does not"),
    open_base_vectors(generations_dir, base, block_keys(corpus), corpus=corpus),
  ):
    pass
  with (
    mock.patch.object(remote, "is_remote", return_value=True),
    open_base_vectors(
      generations_dir, base, block_keys(corpus), corpus=corpus
    ) as stored,
  ):
    assert stored.gather(np.arange(150)).shape == (150, 8)


def test_an_index_is_started_from_one_that_is_whole(
  generations_dir, corpus, caplog
):
  publish_one(generations_dir, corpus, 0)
  _publish(generations_dir, corpus, 500)
  path = generations_dir / "00000500" / "scann"
  assert previous_index(generations_dir, 1000, kind="scann") == path
  assert previous_index(generations_dir, 1000, kind="exact") is None
  assert previous_index(generations_dir, 500, kind="scann") is None
  # Of the vectors it takes nothing.
  _flip(generations_dir / "00000500" / "embeddings-00001-of-00003.npy")
  assert previous_index(generations_dir, 1000, kind="scann") == path
  _flip(path / "tree")
  with caplog.at_level(logging.WARNING, logger="absl"):
    assert previous_index(generations_dir, 1000, kind="scann") is None
  assert "tree does not match its checksum" in caplog.text
