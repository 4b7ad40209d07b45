"""Vectors of groups, as those of a corpus are."""

import numpy as np

from realm_jax.indexes.protocol import Blocks, QueryBatch


def clustered(count: int, seed: int, *, groups: int = 64, dim: int = 32):
  """Float32 [count, dim] around the same centres for every seed."""
  rng = np.random.default_rng(seed)
  centres = np.random.default_rng(0).standard_normal((groups, dim))
  noise = 0.7 * rng.standard_normal((count, dim))
  return (centres[rng.integers(groups, size=count)] + noise).astype(np.float32)


def blocks_of(vectors: np.ndarray) -> Blocks:
  """Blocks that have these vectors and nothing else."""
  return Blocks(num_blocks=len(vectors), vectors=vectors)


def queries_of(vectors: np.ndarray) -> QueryBatch:
  """Queries that have these vectors and no words."""
  return QueryBatch(np.zeros((len(vectors), 1), np.int32), vectors)
