"""Files of vectors and queries for the benchmark of indexes.

A folder has `vectors.npy`, float32 [N, d], and `queries.npy`, which starts with
queries for tuning. `trained_vectors` writes such a folder for a trained run.

Generated vectors resemble the demo model's, from which the constants below were
chosen: their covariance has the same eigenvalues, and searches with FAISS need
the same number of lists and codes. They are a Gaussian mixture of 3,000 groups
around a common mean, scaled to length 1. The sizes of groups follow Zipf's law,
and their widths vary. A query is such a vector, moved away from its group.
"""

import os
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from realm_jax.indexes.protocol import QueryBatch

_DIM = 128
_GROUPS = 3000
# Share of a vector's variance that is within its group, and share of a query's
# variance that is unrelated to its group.
_WITHIN, _MOVED = 0.5, 0.35
# Standard deviation of the vectors before they are scaled, if the mean is 1.
_DEVIATION = 0.62
_ROWS_PER_CHUNK = 1 << 16
_NUM_TUNING, _NUM_QUERIES = 256, 512


def vectors(folder: Path) -> Float32[np.ndarray, "n d"]:
  """Maps the vectors of a folder."""
  return np.load(folder / "vectors.npy", mmap_mode="r", allow_pickle=False)


def queries(folder: Path) -> tuple[QueryBatch, QueryBatch]:
  """Returns the queries for tuning an index, and the queries for measuring."""
  both = np.load(folder / "queries.npy", allow_pickle=False).astype(np.float32)
  tuning, measured = both[:_NUM_TUNING], both[_NUM_TUNING:][:_NUM_QUERIES]
  return QueryBatch.of_vectors(tuning), QueryBatch.of_vectors(measured)


def generate(folder: Path, num_blocks: int, *, seed: int = 0) -> None:
  """Generates vectors and queries, unless the folder has them already.

  Args:
    folder: Folder of the two files.
    num_blocks: Number of vectors.
    seed: Seed of all random numbers.
  """
  path = folder / "vectors.npy"
  if path.exists():
    return
  folder.mkdir(parents=True, exist_ok=True)
  rng = np.random.default_rng(seed)
  # Variances decrease, along random directions.
  deviations = np.exp(-0.165 * np.arange(_DIM) ** 0.66)
  deviations *= _DEVIATION / np.linalg.norm(deviations)
  axes, _ = np.linalg.qr(rng.standard_normal((_DIM, _DIM)))
  shape = (deviations[:, None] * axes.T).astype(np.float32)
  mean = (axes.sum(axis=1) / _DIM**0.5).astype(np.float32)
  centres = rng.standard_normal((_GROUPS, _DIM), np.float32)
  widths = rng.uniform(0.7, 1.3, (_GROUPS, 1)).astype(np.float32)
  shares = 1 / np.arange(1, _GROUPS + 1)
  shares /= shares.sum()

  def mixed(old: np.ndarray, share: float, new: np.ndarray) -> np.ndarray:
    return np.float32((1 - share) ** 0.5) * old + np.float32(share**0.5) * new

  def draw(count: int, moved: float) -> np.ndarray:
    groups = rng.choice(_GROUPS, count, p=shares)
    within, other = rng.standard_normal((2, count, _DIM), np.float32)
    drawn = mixed(centres[groups], _WITHIN, widths[groups] * within)
    drawn = mean + mixed(drawn, moved, other) @ shape
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)

  np.save(folder / "queries.npy", draw(_NUM_TUNING + _NUM_QUERIES, _MOVED))
  # The file is renamed when it is complete.
  unfinished = path.with_suffix(".unfinished")
  array = np.lib.format.open_memmap(
    unfinished, mode="w+", dtype=np.float32, shape=(num_blocks, _DIM)
  )
  for start in range(0, num_blocks, _ROWS_PER_CHUNK):
    part = array[start : start + _ROWS_PER_CHUNK]
    part[:] = draw(len(part), 0.0)
  array.flush()
  os.replace(unfinished, path)
