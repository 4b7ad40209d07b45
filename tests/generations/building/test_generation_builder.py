"""The generation builder by itself, without checkpoints or a sidecar."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

from benchmarks.runs.jobs import wait_until
from realm_jax.generations.building.assignment import AssignmentReader
from realm_jax.generations.building.generation_builder import (
  GenerationBuilder,
  RestoredRetriever,
)
from realm_jax.generations.building.partial_refresh import KnownVectors
from realm_jax.generations.building.worker import WorkerNumber
from realm_jax.generations.follow.loading import load_generation
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from tests.generations.builds import CONFIG, generation_config, params_of
from tests.generations.conftest import make_corpus

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]


@pytest.fixture
def builder(generations_dir, corpus):
  return GenerationBuilder(
    generation_config(), corpus, generations_dir=generations_dir
  )


def test_up_to_date_are_valid_generations_of_these_settings(
  builder, generations_dir, corpus, tmp_path
):
  assert builder.up_to_date() == set()
  restored = RestoredRetriever(jax.device_put(params_of(corpus, 0)))
  for step in (0, 500):
    builder.build(step, restored)
  assert builder.up_to_date([500]) == {0, 500}
  (generations_dir / "00000000" / layout.MANIFEST).write_text("{}")
  assert builder.up_to_date([500]) == {500}
  edited = make_corpus(tmp_path / "edited", num_blocks=150, seed=5)
  other = GenerationBuilder(
    generation_config(), edited, generations_dir=generations_dir
  )
  assert other.up_to_date() == set()


def test_what_the_check_raises_ends_the_build(builder, generations_dir, corpus):
  def check():
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    builder.build(0, RestoredRetriever(params_of(corpus, 0)), check=check)
  assert layout.published_steps(generations_dir) == []


def test_workers_share_the_vectors_that_a_checkpoint_has(
  generations_dir, corpus
):
  dim, rows = generation_config().retriever.vector_size, corpus.num_blocks
  known = np.random.default_rng(0).normal(size=(rows, dim)).astype(np.float32)
  vectors = KnownVectors(
    step=500,
    partials=0,
    rows=np.arange(rows, dtype=np.int32),
    gather=lambda chosen: known[chosen],
    steps=lambda chosen: 400 + chosen % 100,
  )
  retriever = RestoredRetriever(jax.device_put(params_of(corpus, 0)), vectors)
  # With one shard alone, the first worker would not wait for the second.
  embedding = dataclasses.replace(CONFIG, shard_blocks=rows // 4)
  first, second = (
    GenerationBuilder(
      generation_config(config=embedding),
      corpus,
      generations_dir=generations_dir,
      number=WorkerNumber(index, 2),
      poll_seconds=0.05,
    )
    for index in range(2)
  )
  reader = AssignmentReader(generations_dir)
  with ThreadPoolExecutor(1) as thread:
    building = thread.submit(first.build, 500, retriever)
    wait_until(
      lambda: building.done() or reader.read() is not None, what="assignment"
    )
    assigned = reader.read()
    assert assigned is not None, building.result()
    second.help(
      assigned, retriever, is_assigned=lambda: reader.read() == assigned
    )
    assert building.result()
  manifest = manifests.read(layout.path_of(generations_dir, 500))
  assert manifest.oldest_step == 400
  generation = load_generation(generations_dir, 500, corpus=corpus)
  np.testing.assert_array_equal(generation.vectors(np.arange(rows)), known)
