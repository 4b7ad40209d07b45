"""`build_index`, from checkpoints to generations that a trainer loads."""

import json
import shutil

import jax
import numpy as np
import pytest

from benchmarks.fixed_tree import fixed_tree
from realm_jax.generations.build import Builder, build_generation
from realm_jax.generations.loading import load_newest
from realm_jax.generations.store import MANIFEST, GenerationStore
from realm_jax.generations.vectors import Draft
from realm_jax.partitioning.agreement import Agreement
from realm_jax.storage.sole_process import SoleProcessError, sole_process
from tests.generations.builds import (
  StopAfterWaits,
  build,
  embed,
  generation_config,
  params_of,
  save,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]


def test_one_generation_holds_the_vectors_of_its_checkpoint(tmp_path, corpus):
  save(tmp_path, corpus, 0, 500)
  assert build(tmp_path, corpus) == [500]
  generation = load_newest(tmp_path / "generations", corpus=corpus)
  assert (generation.step, generation.index.kind) == (500, "exact")
  params, rows = params_of(corpus, 500), np.array([0, 17, 149])
  np.testing.assert_allclose(
    generation.vectors(rows),
    embed(corpus, params, corpus.gather(rows, 64), "embed_blocks"),
    atol=1e-5,
  )
  # The query tower alone embeds queries; the block tower is not there.
  assert set(generation.query_params) == {"query_tower"}
  tokens = np.array([[2, 9, 10, 3, 0]], np.int32)
  vectors = embed(corpus, generation.query_params, tokens, "embed_queries")
  np.testing.assert_array_equal(
    vectors, embed(corpus, params, tokens, "embed_queries")
  )
  assert generation.manifest.recall == {"8": 1.0}


def test_the_same_checkpoint_makes_the_same_bytes(tmp_path, corpus):
  save(tmp_path, corpus, 500)
  files = []
  for name in ("a", "b"):
    build(
      tmp_path,
      corpus,
      # What is left open would be chosen by times.
      index=fixed_tree(8, num_leaves_searched=4, num_reordered=50),
      generations_dir=tmp_path / name,
    )
    path = tmp_path / name / "00000500" / MANIFEST
    files.append(json.loads(path.read_text())["files"])
  assert files[0] == files[1]


def test_a_checkpoint_that_is_removed_while_it_is_read_is_passed_over(
  tmp_path, corpus
):
  save(tmp_path, corpus, 500, 1000)
  newest = tmp_path / "checkpoints" / "1000"
  # A trainer removes the files first and the directory last.
  shutil.rmtree(newest / "retriever")
  actions = [lambda: None, lambda: shutil.rmtree(newest)]
  stop = StopAfterWaits(9, actions=actions)
  assert build(tmp_path, corpus, stop=stop) == [500]


def test_another_builder_is_refused(tmp_path, corpus, generations_dir):
  save(tmp_path, corpus, 500)
  with (
    sole_process(generations_dir, "builder"),
    pytest.raises(SoleProcessError, match="already has a builder"),
  ):
    build(tmp_path, corpus)
  assert build(tmp_path, corpus) == [500]


def test_a_builder_whose_place_was_taken_publishes_nothing(
  tmp_path, corpus, monkeypatch
):
  save(tmp_path, corpus, 500)
  store = GenerationStore(tmp_path / "generations")
  checks, embed_all = [], Draft.add

  def add_and_lose_place(*arguments, **named):
    embed_all(*arguments, **named)
    checks.append("taken")

  def check():
    if checks:
      raise SoleProcessError("another builder now")

  monkeypatch.setattr(Draft, "add", add_and_lose_place)
  with pytest.raises(SoleProcessError):
    build_generation(
      Builder(generation_config(), corpus),
      500,
      jax.device_put(params_of(corpus, 500)),
      store,
      agreement=Agreement("test"),
      check=check,
    )
  assert store.steps() == []


def test_queries_are_sentences_of_the_corpus(corpus):
  builder = Builder(
    generation_config(query_length=6, recall_queries=40), corpus
  )
  halves = builder.queries(jax.device_put(params_of(corpus, 0)))
  queries = np.concatenate([half.token_ids for half in halves])
  assert queries.shape == (40, 6)
  sentences = {
    tuple(corpus.block(row).body_token_ids[start:limit].tolist())
    for row in range(corpus.num_blocks)
    for start, limit in corpus.block(row).sentences
  }
  for query in queries.tolist():
    end = query.index(3)
    assert query[0] == 2 and not any(query[end + 1 :])
    assert tuple(query[1:end]) in sentences
