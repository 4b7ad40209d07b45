"""`build_index` with a partial refresh."""

import dataclasses
import logging
from unittest import mock

import jax
import numpy as np
import pytest

from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.generations.building.partial_refresh import PartialRefresh
from realm_jax.generations.follow.loading import load_generation, load_newest
from realm_jax.generations.store import publisher
from tests.generations.builds import (
  RETRIEVER,
  build,
  embed,
  params_of,
)
from tests.generations.conftest import files_of, make_corpus

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]


_PARTIAL = PartialRefresh(fraction=0.4, full_every=3)


def _nearby(model_dir, corpus, *steps):
  """Checkpoints between which vectors move little."""
  # Of values that tell blocks apart, as a trained model's do.
  initial = params_of(corpus, 7)
  params = {}
  store = CheckpointStore(model_dir, keep=100)
  for step in steps:
    rng = np.random.default_rng(step)
    params[step] = jax.tree.map(
      lambda x, rng=rng: (
        x + 0.0003 * rng.standard_normal(x.shape).astype(x.dtype)
      ),
      initial,
    )
    loop = {"generation": np.int64(-1), "seed": np.int64(0)}
    store.save(step, {"retriever": params[step], "loop": loop})
  store.close()
  return params


def _embedded_with(corpus, params):
  rows = np.arange(corpus.num_blocks)
  return embed(corpus, params, corpus.gather(rows, 64), "embed_blocks")


def test_a_partial_refresh_embeds_a_part_and_takes_the_rest(tmp_path, corpus):
  params = _nearby(tmp_path, corpus, 0, 500, 1000, 1500)
  generations_dir = tmp_path / "generations"
  by_step = {s: _embedded_with(corpus, p) for s, p in params.items()}
  for step in (0, 500, 1000, 1500):
    build(tmp_path, corpus, partial=_PARTIAL, checkpoint_step=step)
    generation = load_generation(generations_dir, step, corpus=corpus)
    manifest = generation.manifest
    rows = np.arange(150)
    steps = generation.embeddings.steps(rows)
    for old in np.unique(steps).tolist():
      np.testing.assert_allclose(
        generation.vectors(rows[steps == old]),
        by_step[old][steps == old],
        atol=1e-5,
      )
    assert manifest.oldest_step == generation.oldest_step == steps.min()
    if step in (0, 1500):
      # The first, and the third after it.
      assert manifest.partial is None and set(steps) == {step}
      continue
    assert manifest.partial.base == step - 500
    assert manifest.partial.partials == step // 500
    fresh = steps == step
    assert manifest.partial.embedded_blocks == fresh.sum()
    tokens = corpus.lengths
    assert 0.3 < tokens[fresh].sum() / tokens.sum() < 0.5
    # At 1000 the oldest are embedded first, and half of those of step 0 fit.
    assert set(steps) == ({0, 500} if step == 500 else {0, 500, 1000})


@pytest.mark.parametrize("case", ["damaged", "another model"])
def test_without_a_sound_earlier_generation_all_are_embedded(
  tmp_path, corpus, caplog, case
):
  _nearby(tmp_path, corpus, 0, 500)
  generations_dir = tmp_path / "generations"
  build(tmp_path, corpus, partial=_PARTIAL, checkpoint_step=0)
  path = files_of(generations_dir, 0) / "embeddings-00000-of-00001.npy"
  other = {}
  if case == "damaged":
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
  if case == "another model":
    other = {"retriever": dataclasses.replace(RETRIEVER, normalize=True)}
  with caplog.at_level(logging.INFO, logger="absl"):
    _build_without_mending(tmp_path, corpus, partial=_PARTIAL, **other)
  generation = load_generation(generations_dir, 500, corpus=corpus)
  assert generation.manifest.partial is None
  assert generation.oldest_step == 500
  assert "generation 500 embeds every block" in caplog.text


def _build_without_mending(*args, **settings):
  """As where the damage comes while the builder runs."""
  with mock.patch.object(publisher, "remove_damaged"):
    return build(*args, **settings)


def test_another_version_of_the_corpus_embeds_what_is_new_in_it(
  tmp_path, corpus
):
  _nearby(tmp_path, corpus, 0, 500)
  build(tmp_path, corpus, partial=_PARTIAL, checkpoint_step=0)
  # The same blocks, and ten more.
  longer = make_corpus(tmp_path / "longer", num_blocks=160)
  np.testing.assert_array_equal(
    longer.block(149).token_ids, corpus.block(149).token_ids
  )
  build(tmp_path, longer, partial=_PARTIAL)
  generation = load_newest(tmp_path / "generations", corpus=longer)
  assert generation.manifest.partial.new_blocks == 10
  steps = generation.embeddings.steps(np.arange(160))
  assert (steps[150:] == 500).all() and (steps[:150] == 0).sum() > 60


def test_a_corpus_that_changes_embeds_what_is_new_with_the_same_checkpoint(
  tmp_path, corpus
):
  params = _nearby(tmp_path, corpus, 0, 500)
  build(tmp_path, corpus, partial=_PARTIAL, checkpoint_step=0)
  every = dataclasses.replace(_PARTIAL, full_every=1)
  build(tmp_path, corpus, partial=every, checkpoint_step=500)
  longer = make_corpus(tmp_path / "longer", num_blocks=160)
  assert build(tmp_path, longer, partial=_PARTIAL) == [500]
  generation = load_newest(tmp_path / "generations", corpus=longer)
  partial = generation.manifest.partial
  assert (partial.base, partial.partials) == (500, 0)
  # What is new is embedded; nothing goes back to what is older.
  assert partial.new_blocks == partial.embedded_blocks == 10
  assert generation.oldest_step == 500
  np.testing.assert_allclose(
    generation.vectors(np.arange(160)),
    _embedded_with(longer, params[500]),
    atol=1e-5,
  )
  assert build(tmp_path, longer, partial=_PARTIAL) == []
