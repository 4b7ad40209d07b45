"""Random blocks, a control for comparisons with other indexes."""

import dataclasses
import hashlib
from pathlib import Path
from typing import ClassVar

import numpy as np

from realm_jax.indexes.protocol import (
  Blocks,
  Index,
  IndexConfig,
  QueryBatch,
  SearchResult,
  check_k,
)
from realm_jax.settings import NonNegativeInt


@dataclasses.dataclass(frozen=True)
class RandomConfig(IndexConfig):
  """Random blocks, the same ones whenever query and `seed` are the same."""

  kind: ClassVar[str] = "random"
  needs_vectors: ClassVar[bool] = False
  has_files: ClassVar[bool] = False
  seed: NonNegativeInt = 0

  def build(
    self, blocks: Blocks, directory: Path | None = None
  ) -> "RandomIndex":
    """Returns the index, which needs only the number of blocks."""
    del directory
    return RandomIndex(blocks.num_blocks, seed=self.seed)


class RandomIndex(Index):
  """Draws distinct rows by a hash of the query's wordpieces.

  Scores fall by a millionth from one block to the next, which fixes their order
  and hardly prefers any of them.
  """

  kind = "random"
  needs_vectors = False
  has_own_scores = True

  def __init__(self, num_blocks: int, *, seed: int = 0):
    self.num_blocks = num_blocks
    self._seed = seed

  def search(self, queries: QueryBatch, k: int) -> SearchResult:
    """Returns k distinct blocks for each query; padding has no influence."""
    check_k(k, self.num_blocks)
    rows = np.empty((len(queries.token_ids), k), np.int32)
    for i, token_ids in enumerate(queries.token_ids):
      words = np.trim_zeros(token_ids, "b").astype("<i4").tobytes()
      digest = hashlib.blake2b(words, digest_size=8).digest()
      seed = self._seed, int.from_bytes(digest, "little")
      rng = np.random.default_rng(seed)
      rows[i] = rng.choice(self.num_blocks, k, replace=False)
    scores = np.tile(-1e-6 * np.arange(k, dtype=np.float32), (len(rows), 1))
    return SearchResult(rows=rows, scores=scores)
