"""Embedding the corpus: every block once, in its row, in few shapes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from realm_jax.partitioning.mesh import make_mesh
from realm_jax.snapshots.embedding import CorpusEmbedder


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
