"""The control of every comparison: blocks that have nothing to do with it."""

import dataclasses
import hashlib
from typing import Any, ClassVar

import numpy as np

from realm_jax.indexes.protocol import (
  PLAIN,
  Blocks,
  BuildOptions,
  PathLike,
  QueryBatch,
  SearchResult,
  check_k,
)


@dataclasses.dataclass(frozen=True)
class RandomConfig:
  """Random blocks, the same ones for the same query.

  Attributes:
    seed: another seed draws other blocks.
  """

  kind: ClassVar[str] = "random"
  may_crash: ClassVar[bool] = False
  seed: int = 0

  def build(
    self, blocks: Blocks, options: BuildOptions = PLAIN
  ) -> "RandomIndex":
    """Needs nothing but the number of blocks."""
    del options
    return RandomIndex(blocks.num_blocks, seed=self.seed)

  def load(
    self, directory: PathLike, blocks: Blocks, *, mesh: Any = None
  ) -> "RandomIndex":
    """The same as `build`."""
    del directory, mesh
    return self.build(blocks)


class RandomIndex:
  """Draws distinct rows by a hash of the query's wordpieces.

  Scores fall by a millionth from one to the next: an order that every reader
  of it agrees on, and no preference.
  """

  kind = "random"
  needs_vectors = False

  def __init__(self, num_blocks: int, *, seed: int = 0):
    self.num_blocks = num_blocks
    self.report: dict[str, Any] = {}
    self._seed = seed

  def search(self, queries: QueryBatch, k: int) -> SearchResult:
    """k distinct blocks for each query, whatever the padding of the batch."""
    check_k(k, self.num_blocks)
    rows = [self._draw(query, k) for query in queries.token_ids]
    scores = np.tile(-1e-6 * np.arange(k, dtype=np.float32), (len(rows), 1))
    return SearchResult(
      rows=np.asarray(rows, np.int32).reshape(-1, k), scores=scores
    )

  def _draw(self, token_ids: np.ndarray, k: int) -> np.ndarray:
    words = np.trim_zeros(token_ids, "b").astype("<i4").tobytes()
    digest = hashlib.blake2b(words, digest_size=8).digest()
    rng = np.random.default_rng([self._seed, int.from_bytes(digest, "little")])
    return rng.choice(self.num_blocks, k, replace=False)
