"""Texts of assumed lengths, for a recipe whose corpus is not there."""

import numpy as np
from jaxtyping import Int

from realm_jax.corpus.shard import NUM_SPECIAL_TOKENS
from realm_jax.corpus.store import NULL_ROW

_LEAST_BLOCK_SHARE = 0.2
_SENTENCE_LENGTHS = 12, 60


class AssumedTexts:
  """Blocks and sentences of random tokens, in place of a corpus.

  Blocks fill 20 to 100 % of their length, special tokens included, and
  sentences have 12 to 60 tokens, all of these lengths equally often.
  """

  def __init__(self, num_blocks: int, vocab_size: int):
    self.num_blocks = num_blocks
    self._vocab_size = vocab_size

  def random_sentences(
    self, rows: Int[np.ndarray, " n"], length: int, rng: np.random.Generator
  ) -> Int[np.ndarray, "n {length}"]:
    """Returns a sentence for each row, padded with 0."""
    least, most = (min(bound, length) for bound in _SENTENCE_LENGTHS)
    return self._padded(rng.integers(least, most + 1, len(rows)), length, rng)

  def gather(
    self, rows: Int[np.ndarray, "*s"], length: int
  ) -> Int[np.ndarray, "*s {length}"]:
    """Returns blocks, padded with 0; the null block has specials alone."""
    rng = np.random.default_rng(rows.size)
    least = max(NUM_SPECIAL_TOKENS, int(_LEAST_BLOCK_SHARE * length))
    lengths = rng.integers(least, length + 1, rows.shape)
    blocks = self._padded(lengths, length, rng)
    blocks[rows == NULL_ROW] = np.arange(length) < NUM_SPECIAL_TOKENS
    return blocks

  def _padded(
    self, lengths: Int[np.ndarray, "*s"], width: int, rng: np.random.Generator
  ) -> Int[np.ndarray, "*s {width}"]:
    tokens = rng.integers(1, self._vocab_size, (*lengths.shape, width))
    return np.where(np.arange(width) < lengths[..., None], tokens, 0)
