"""Embedding the corpus: every block once, in its row, in few shapes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from realm_jax.corpus.store import NULL_ROW
from realm_jax.generations.corpus_embedder import CorpusEmbedder, length_batches
from realm_jax.generations.embeddings import EmbeddingsWriter
from realm_jax.partitioning.mesh import make_mesh


@given(
  lengths=st.lists(st.integers(3, 64), min_size=1, max_size=300),
  tokens_per_batch=st.integers(1, 700),
  length_step=st.integers(1, 64),
  multiple=st.integers(1, 8),
)
def test_every_row_is_in_one_batch_that_is_long_enough(
  lengths, tokens_per_batch, length_step, multiple
):
  lengths = np.array(lengths)
  batches = list(
    length_batches(
      lengths,
      tokens_per_batch=tokens_per_batch,
      length_step=length_step,
      longest=64,
      multiple=multiple,
    )
  )
  rows = np.concatenate([rows for _, rows in batches])
  assert sorted(rows[rows != NULL_ROW].tolist()) == list(range(len(lengths)))
  for length, rows in batches:
    assert length <= 64 and len(rows) % multiple == 0
    assert (lengths[rows[rows != NULL_ROW]] <= length).all()
    assert len(rows) * length <= max(tokens_per_batch, multiple * length)
  # Only the last batch pads, and each length has one shape.
  assert all((rows != NULL_ROW).all() for _, rows in batches[:-1])
  shapes = {(length, len(rows)) for length, rows in batches}
  assert len(shapes) == len({length for length, _ in batches})


def test_a_length_beyond_the_longest_is_cut_there():
  batches = list(
    length_batches(
      np.array([60, 61]), tokens_per_batch=256, length_step=32, longest=61
    )
  )
  assert [length for length, _ in batches] == [61]


def _bag_of_words(table, token_ids):
  """A vector that any padding or order of batches would show in."""
  is_token = (token_ids != 0)[..., None]
  return jnp.sum(table[token_ids] * is_token, axis=1)


@pytest.mark.parametrize("devices", [1, 8])
def test_each_vector_lands_in_its_row(corpus, tmp_path, devices):
  table = np.random.default_rng(0).integers(-9, 9, (64, 5)).astype(np.float32)
  embedder = CorpusEmbedder(
    corpus,
    _bag_of_words,
    mesh=make_mesh(devices=jax.devices()[:devices]),
    tokens_per_batch=512,
    length_step=16,
  )
  writer = EmbeddingsWriter(tmp_path, num_blocks=150, dim=5, shard_bytes=900)
  embedder.embed(table, writer)
  writer.close()
  vectors = np.concatenate(
    [np.load(tmp_path / shard.path) for shard in writer.shards]
  )
  for row in range(150):
    # The two [SEP] and the [CLS] are embedded too.
    expected = table[corpus.token_ids(row)].sum(axis=0)
    expected = expected + table[2] + 2 * table[3]
    np.testing.assert_array_equal(vectors[row], expected)


def test_a_second_generation_compiles_nothing(corpus, tmp_path):
  traced = []

  def embed(table, token_ids):
    traced.append(token_ids.shape)
    return _bag_of_words(table, token_ids)

  embedder = CorpusEmbedder(
    corpus, embed, mesh=make_mesh(), tokens_per_batch=256, length_step=16
  )
  for i in range(2):
    (tmp_path / str(i)).mkdir()
    writer = EmbeddingsWriter(tmp_path / str(i), num_blocks=150, dim=5)
    embedder.embed(np.ones((64, 5), np.float32) * i, writer)
    writer.close()
  # Lengths are 9 to 45: three shapes, traced once each.
  assert sorted({length for _, length in traced}) == [16, 32, 48]
  assert len(traced) == 3


def test_what_the_check_raises_ends_the_work(corpus, tmp_path):
  def check():
    raise KeyboardInterrupt

  embedder = CorpusEmbedder(corpus, _bag_of_words, mesh=make_mesh())
  writer = EmbeddingsWriter(tmp_path, num_blocks=150, dim=5)
  with pytest.raises(KeyboardInterrupt):
    embedder.embed(np.ones((64, 5), np.float32), writer, check=check)
