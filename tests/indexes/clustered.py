"""Clustered vectors, as those of a corpus are."""

import numpy as np


def clustered(count: int, seed: int) -> np.ndarray:
  """Draws vectors [count, 32] around the same centers for every seed."""
  rng = np.random.default_rng(seed)
  centers = np.random.default_rng(0).standard_normal((64, 32))
  noise = 0.7 * rng.standard_normal((count, 32))
  return (centers[rng.integers(64, size=count)] + noise).astype(np.float32)
