"""Clustered vectors, as those of a corpus are, and how well they are found."""

import numpy as np

from realm_jax.indexes.protocol import Blocks, QueryBatch, SearchResult


def clustered(
  count: int, seed: int, *, groups: int = 64, dim: int = 32
) -> np.ndarray:
  """Draws float32 vectors around the same centers for every seed."""
  rng = np.random.default_rng(seed)
  centers = np.random.default_rng(0).standard_normal((groups, dim))
  noise = 0.7 * rng.standard_normal((count, dim))
  return (centers[rng.integers(groups, size=count)] + noise).astype(np.float32)


def blocks_of(vectors: np.ndarray) -> Blocks:
  """Makes blocks that have vectors and nothing else."""
  return Blocks(num_blocks=len(vectors), vectors=vectors)


def check_found(
  found: SearchResult,
  queries: QueryBatch,
  vectors: np.ndarray,
  *,
  min_recall: float,
  tolerance: float = 1e-4,
) -> None:
  """Compares the blocks that were found, and their scores, with all scores."""
  scores = queries.vectors @ vectors.T
  best = np.argsort(-scores, axis=1)[:, : found.rows.shape[1]]
  hits = [len({*a} & {*b}) for a, b in zip(found.rows, best, strict=True)]
  assert np.mean(hits) / best.shape[1] > min_recall
  np.testing.assert_allclose(
    found.scores,
    np.take_along_axis(scores, found.rows, axis=1),
    rtol=tolerance,
    atol=tolerance,
  )
