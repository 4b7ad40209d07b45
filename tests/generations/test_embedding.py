"""Embedding the corpus: every block once, in its row, in few shapes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realm_jax.corpus.store import NULL_ROW
from realm_jax.generations.embedding import (
  CorpusEmbedder,
  choose_lengths,
  length_batches,
)
from realm_jax.partitioning.mesh import make_mesh


@pytest.mark.parametrize("devices", [1, 8])
def test_each_vector_lands_in_its_row_and_later_calls_compile_nothing(
  corpus, devices
):
  traced = []

  def bag_of_words(params, token_ids):
    # A vector in which any error of padding or order would show.
    traced.append(token_ids.shape)
    is_token = (token_ids != 0)[..., None]
    return jnp.sum(params["table"][token_ids] * is_token, axis=1)

  embedder = CorpusEmbedder(
    corpus,
    bag_of_words,
    dim=5,
    mesh=make_mesh(devices=jax.devices()[:devices]),
    num_lengths=3,
    rows_per_call=50,
  )
  for seed in range(3):
    table = np.random.default_rng(seed).integers(-9, 9, (64, 5))
    table = table.astype(np.float32)
    rows = np.arange(seed, 150, 3)
    vectors = embedder.embed({"table": table}, rows)
    for row, vector in zip(rows.tolist(), vectors, strict=True):
      # The two [SEP] and the [CLS] are embedded too.
      expected = table[corpus.block(row).token_ids].sum(axis=0)
      expected = expected + table[2] + 2 * table[3]
      np.testing.assert_array_equal(vector, expected)
  assert len(traced) == len(embedder.lengths) == 3


@settings(max_examples=30)
@given(
  lengths=st.lists(st.integers(3, 64), min_size=1, max_size=300),
  tokens_per_batch=st.integers(1, 700),
  most=st.integers(1, 8),
  multiple=st.integers(1, 8),
)
def test_every_row_is_in_one_batch_that_is_long_enough(
  lengths, tokens_per_batch, most, multiple
):
  lengths = np.array(lengths)
  given_rows = 7 + np.arange(len(lengths))
  batches = list(
    length_batches(
      given_rows,
      lengths,
      batch_lengths=choose_lengths(lengths, longest=64, max_lengths=most),
      tokens_per_batch=tokens_per_batch,
      multiple=multiple,
    )
  )
  rows = np.concatenate([rows for _, rows in batches])
  assert sorted(rows[rows != NULL_ROW].tolist()) == given_rows.tolist()
  for length, rows in batches:
    assert length <= 64 and len(rows) % multiple == 0
    assert (lengths[rows[rows != NULL_ROW] - 7] <= length).all()
    assert len(rows) * length <= max(tokens_per_batch, multiple * length)
  # Only the last batch pads, and each length has one shape.
  assert all((rows != NULL_ROW).all() for _, rows in batches[:-1])
  shapes = {(length, len(rows)) for length, rows in batches}
  assert len(shapes) == len({length for length, _ in batches})
