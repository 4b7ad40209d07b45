"""Sentences in tokens, on numbers worked out by hand."""

import numpy as np

from realm_jax.corpus.splitting import align_sentences


def test_sentences_in_tokens():
  for sentences, tokens, token_ranges, byte_ranges in (
    # Bytes 3…5 have no token; nor has the end, 9…10.
    (
      [[0, 2], [3, 5], [6, 8], [9, 10]],
      [[0, 2], [6, 8]],
      [[0, 1], [1, 2]],
      [[0, 2], [3, 10]],
    ),
    # The first two share a token.
    (
      [[0, 4], [5, 9], [10, 12]],
      [[0, 2], [3, 6], [7, 9], [10, 12]],
      [[0, 3], [3, 4]],
      [[0, 9], [10, 12]],
    ),
  ):
    aligned = align_sentences(np.array(sentences), np.array(tokens))
    assert aligned.token_ranges.tolist() == token_ranges
    assert aligned.byte_ranges.tolist() == byte_ranges
