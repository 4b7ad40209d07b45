"""What a reader accepts, and what it refuses."""

import json
import shutil

import ml_dtypes
import numpy as np
import pytest

from realm_jax.generations.loading import load_generation, load_newest
from realm_jax.generations.manifest import GenerationError, to_checked_json
from realm_jax.generations.store import MANIFEST
from realm_jax.generations.vectors import Embeddings, ShardLayout, write_shard
from realm_jax.indexes.protocol import QueryBatch
from realm_jax.indexes.random import RandomConfig
from tests.generations.conftest import (
  DIM,
  files_of,
  make_corpus,
  publish_one,
  random_vectors,
)


def test_what_is_published_comes_back_whole(generations_dir, corpus):
  publish_one(generations_dir, corpus, 500)
  generation = load_generation(generations_dir, 500, corpus=corpus)
  vectors = random_vectors(150, 500)
  rows = np.array([[0, 149, 7], [49, 50, 100]])
  np.testing.assert_array_equal(generation.vectors(rows), vectors[rows])
  np.testing.assert_array_equal(
    generation.query_params["tower"]["kernel"], np.full((2, 3), 500)
  )
  found = generation.index.search(
    QueryBatch(np.zeros((2, 4), np.int32), vectors[[3, 77]]), 1
  )
  scores = vectors[[3, 77]] @ vectors.T
  np.testing.assert_array_equal(found.rows[:, 0], scores.argmax(axis=1))
  files = {file.path for file in generation.manifest.files}
  assert len([name for name in files if name.startswith("embeddings-")]) == 3


def test_another_index_may_search_the_same_blocks(generations_dir, corpus):
  publish_one(generations_dir, corpus, 500)
  generation = load_generation(
    generations_dir, 500, corpus=corpus, index=RandomConfig()
  )
  assert generation.index.kind == "random"
  assert generation.index.num_blocks == corpus.num_blocks


def _cut(path):
  with path.open("r+b") as file:
    file.truncate(path.stat().st_size - 1)


def _rewrite(generations_dir, **changes):
  path = generations_dir / "00000500" / MANIFEST
  path.write_text(to_checked_json(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
  "changes, message",
  [
    ({"format_version": 1}, "format version 1, and this program reads 2"),
    ({"step": 499}, "generation of step 499"),
    ({"num_blocks": 151}, "150 rows for 151 blocks"),
    ({"colour": "red"}, "colour"),
    ({"folder": "../.."}, "leads outside"),
    ({"index_kind": "psychic"}, "no index is called 'psychic'"),
    ({"index_parameters": {"leaves": 3}}, "has no parameter leaves"),
    ({"dim": DIM + 1}, "its manifest says"),
  ],
)
def test_a_manifest_that_cannot_be_is_refused(
  generations_dir, corpus, changes, message
):
  publish_one(generations_dir, corpus, 500)
  _rewrite(generations_dir, **changes)
  with pytest.raises(GenerationError, match=message):
    load_generation(generations_dir, 500, corpus=corpus)


def test_a_generation_of_another_corpus_is_refused(
  generations_dir, corpus, tmp_path
):
  other = make_corpus(tmp_path / "other", num_blocks=150, seed=1)
  publish_one(generations_dir, other, 500)
  with pytest.raises(GenerationError, match="of another corpus"):
    load_generation(generations_dir, 500, corpus=corpus)


def test_the_newest_that_is_sound_is_taken(generations_dir, corpus, tmp_path):
  for step in (0, 500, 1000):
    publish_one(generations_dir, corpus, step)
  _cut(files_of(generations_dir, 1000) / "embeddings-00001-of-00003.npy")
  assert load_newest(generations_dir, corpus=corpus).step == 500
  shutil.rmtree(generations_dir)
  with pytest.raises(GenerationError, match="build_index --once"):
    load_newest(generations_dir, corpus=corpus)


def test_bfloat16_vectors_come_back_as_they_were_rounded(
  generations_dir, corpus
):
  publish_one(generations_dir, corpus, 500, dtype="bfloat16")
  generation = load_generation(generations_dir, 500, corpus=corpus)
  rounded = random_vectors(150, 500).astype(ml_dtypes.bfloat16)
  np.testing.assert_array_equal(
    generation.vectors(np.arange(150)), rounded.astype(np.float32)
  )
  np.testing.assert_array_equal(generation.embeddings[45:120], rounded[45:120])


# --- Files of vectors -----------------------------------------------------

_LAYOUT = ShardLayout.of(150, DIM, dtype="float32", max_rows=50)


def _write(directory, steps, vectors=None):
  if vectors is None:
    vectors = np.ones((150, DIM), np.float32)
  return [
    write_shard(
      directory,
      _LAYOUT,
      shard,
      vectors[_LAYOUT.rows(shard)],
      steps[_LAYOUT.rows(shard)],
    )[0]
    for shard in range(len(_LAYOUT))
  ]


def test_a_vector_that_is_not_finite_is_refused(tmp_path):
  vectors = np.ones((150, DIM), np.float32)
  vectors[102, 1] = np.nan
  with pytest.raises(GenerationError, match="vector of block 102"):
    _write(tmp_path, np.zeros(150, int), vectors)


def test_each_row_tells_its_step_and_each_shard_its_oldest(tmp_path):
  steps = np.full(150, 30)
  steps[60:70], steps[120:] = 10, 20
  shards = _write(tmp_path, steps)
  assert [shard.oldest_step for shard in shards] == [30, 10, 20]
  assert [bool(shard.steps_path) for shard in shards] == [False, True, True]
  rows = np.array([149, 0, 65, 59, 60])
  stored = Embeddings(tmp_path, shards, dim=DIM, dtype="float32")
  np.testing.assert_array_equal(stored.steps(rows), steps[rows])
