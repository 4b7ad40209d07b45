"""Embedding the corpus: every block once, in its row, in few shapes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from realm_jax.generations.build.corpus_embedder import CorpusEmbedder
from realm_jax.generations.store.manifest import GenerationError
from realm_jax.partitioning.mesh import make_mesh


def _bag_of_words(table, token_ids):
  """A vector that any padding or order of batches would show in."""
  is_token = (token_ids != 0)[..., None]
  return jnp.sum(table[token_ids] * is_token, axis=1)


@pytest.mark.parametrize("devices", [1, 8])
def test_each_vector_lands_in_its_row(corpus, devices):
  table = np.random.default_rng(0).integers(-9, 9, (64, 5)).astype(np.float32)
  embedder = CorpusEmbedder(
    corpus,
    _bag_of_words,
    dim=5,
    mesh=make_mesh(devices=jax.devices()[:devices]),
    tokens_per_batch=512,
    num_lengths=3,
  )
  rows = np.arange(3, 150, 2)
  for row, vector in zip(rows, embedder.embed(table, rows), strict=True):
    # The two [SEP] and the [CLS] are embedded too.
    expected = table[corpus.token_ids(row)].sum(axis=0)
    expected = expected + table[2] + 2 * table[3]
    np.testing.assert_array_equal(vector, expected)


def test_other_rows_and_another_generation_compile_nothing(corpus):
  traced = []

  def embed(table, token_ids):
    traced.append(token_ids.shape)
    return _bag_of_words(table, token_ids)

  embedder = CorpusEmbedder(
    corpus, embed, dim=5, mesh=make_mesh(), num_lengths=3, rows_at_once=50
  )
  for i in range(2):
    for start in (0, 50, 100):
      rows = np.arange(start, start + 50)
      embedder.embed(np.ones((64, 5), np.float32) * i, rows)
  assert sorted({length for _, length in traced}) == list(embedder.lengths)
  assert len(traced) == len(embedder.lengths) == 3


def test_costs_are_the_tokens_of_each_block_with_its_padding(corpus):
  embedder = CorpusEmbedder(
    corpus, _bag_of_words, dim=5, mesh=make_mesh(), num_lengths=2
  )
  costs = embedder.costs()
  assert (costs >= corpus.lengths).all()
  assert set(costs.tolist()) == set(embedder.lengths)


def test_a_vector_that_is_not_finite_is_refused(corpus):
  table = np.ones((64, 5), np.float32)
  table[corpus.token_ids(40)[-1]] = np.nan
  embedder = CorpusEmbedder(corpus, _bag_of_words, dim=5, mesh=make_mesh())
  with pytest.raises(GenerationError, match="vector of block 40 is not finite"):
    embedder.embed(table, np.array([40]))


def test_what_the_check_raises_ends_the_work(corpus):
  def check():
    raise KeyboardInterrupt

  embedder = CorpusEmbedder(corpus, _bag_of_words, dim=5, mesh=make_mesh())
  with pytest.raises(KeyboardInterrupt):
    embedder.embed(np.ones((64, 5), np.float32), np.arange(150), check=check)
