"""A corpus of a few texts that are in memory, with tokens of one character."""

import numpy as np

from realm_jax.corpus.store import Corpus

VOCABULARY = "#ab1 "


class Texts(Corpus):
  """Blocks whose tokens are their characters; "#" continues a word."""

  vocab_size = len(VOCABULARY)
  continuation = np.array([character == "#" for character in VOCABULARY])

  def __init__(self, texts):
    self._texts = texts
    self.num_blocks = len(texts)

  def bodies_utf8(self, rows):
    return [self._texts[row].encode() for row in rows]

  def body_token_ids(self, row):
    ids = [max(VOCABULARY.find(c), 0) for c in self._texts[row]]
    return np.array(ids, np.int32)

  def body_byte_ranges(self, row):
    ends = np.cumsum([0, *(len(c.encode()) for c in self._texts[row])])
    return np.stack([ends[:-1], ends[1:]], 1)

  def body_tokens_flat(self, rows):
    tokens = [self.body_token_ids(row) for row in rows]
    offsets = np.cumsum([0, *map(len, tokens)])
    return np.concatenate([np.zeros(0, np.int32), *tokens]), offsets
