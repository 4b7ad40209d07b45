"""What a reader accepts, and what it refuses."""

import shutil

import ml_dtypes
import numpy as np
import pytest

from realm_jax.generations.loading import load_generation, load_newest
from realm_jax.generations.manifest import (
  GenerationError,
  from_checked_json,
  to_checked_json,
)
from realm_jax.generations.store import MANIFEST
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
  other = load_generation(
    generations_dir, 500, corpus=corpus, index=RandomConfig()
  )
  assert (other.index.kind, other.num_blocks) == ("random", 150)


def _cut(path):
  with path.open("r+b") as file:
    file.truncate(path.stat().st_size - 1)


def _rewrite(generations_dir, **changes):
  path = generations_dir / "00000500" / MANIFEST
  path.write_text(
    to_checked_json(from_checked_json(path.read_text()) | changes)
  )


@pytest.mark.parametrize(
  "changes, message",
  [
    ({"format_version": 1}, "format version 1, and this program reads 2"),
    ({"step": 499}, "generation of step 499"),
    ({"num_blocks": 151}, "150 rows for 151 blocks"),
    ({"colour": "red"}, "colour"),
    ({"folder": "../.."}, "leads outside"),
    ({"index_kind": "psychic"}, "no index is called 'psychic'"),
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


def test_each_row_tells_its_step_and_a_generation_its_oldest(
  generations_dir, corpus
):
  steps = np.full(150, 500)
  steps[60:70], steps[120:] = 100, 200
  publish_one(generations_dir, corpus, 500, steps=steps)
  generation = load_generation(generations_dir, 500, corpus=corpus)
  assert generation.oldest_step == 100
  rows = np.array([149, 0, 65, 59, 60])
  np.testing.assert_array_equal(generation.embeddings.steps(rows), steps[rows])
  with pytest.raises(IndexError, match="null block"):
    generation.vectors(np.array([0, -1]))


def test_a_vector_that_is_not_finite_is_refused(generations_dir, corpus):
  vectors = random_vectors(150, 0)
  vectors[102, 1] = np.nan
  with pytest.raises(GenerationError, match="vector of block 102"):
    publish_one(generations_dir, corpus, 500, vectors=vectors)
