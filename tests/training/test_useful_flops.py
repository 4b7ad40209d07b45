"""Arithmetic of an encoder, counted by hand."""

import numpy as np

from realm_jax.models.bert import BertConfig
from realm_jax.training import useful_flops


def test_an_encoder_counts_tokens_and_their_pairs():
  bert = BertConfig(
    hidden_size=4, num_layers=3, num_heads=2, intermediate_size=5
  )
  lengths = np.array([2, 0, 3])
  # Four projections of 4 × 4 and two of 4 × 5 for 5 tokens; scores and sums
  # over 4 dimensions for 2 × 2 and 3 × 3 pairs.
  layer = 2 * 5 * (4 * 16 + 2 * 20) + 4 * (4 + 9) * 4
  assert (
    useful_flops.encoder_flops(bert, lengths, first_only=False) == 3 * layer
  )
  # In the last layer keys and values of 5 tokens, the rest of 2.
  last = 2 * 5 * 2 * 16 + 2 * 2 * (2 * 16 + 2 * 20) + 4 * 5 * 4
  found = useful_flops.encoder_flops(bert, lengths, first_only=True)
  assert found == 2 * layer + last
