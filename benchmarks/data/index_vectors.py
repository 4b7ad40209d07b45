"""Vectors and queries for the benchmark of indexes, in files.

A folder has `vectors.npy`, float32 [N, d], and `queries.npy`, of which the
first are for tuning. `trained_vectors` writes such a folder for a trained run.
Those that are generated here have 3,000 groups, as many as no index has leaves
or lists, whose sizes follow Zipf's law and whose spreads differ; queries spread
wider.
"""

import os
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from realm_jax.indexes.protocol import QueryBatch

_DIM = 128
_GROUPS = 3000
_ROWS_PER_CHUNK = 1 << 16
_NUM_TUNING, _NUM_QUERIES = 256, 512


def vectors(folder: Path) -> Float32[np.ndarray, "n d"]:
  """Maps the vectors of a folder."""
  return np.load(folder / "vectors.npy", mmap_mode="r", allow_pickle=False)


def queries(folder: Path) -> tuple[QueryBatch, QueryBatch]:
  """Returns the queries to tune an index with, and those to measure it with."""
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
  made = folder / "vectors.npy"
  if made.exists():
    return
  folder.mkdir(parents=True, exist_ok=True)
  rng = np.random.default_rng(seed)
  centres = rng.standard_normal((_GROUPS, _DIM), np.float32)
  spreads = rng.uniform(0.3, 1.0, (_GROUPS, 1)).astype(np.float32)
  shares = 1 / np.arange(1, _GROUPS + 1)
  shares /= shares.sum()

  def draw(count: int, noise: float) -> np.ndarray:
    groups = rng.choice(_GROUPS, count, p=shares)
    drawn = rng.standard_normal((count, _DIM), np.float32)
    return centres[groups] + np.float32(noise) * spreads[groups] * drawn

  np.save(folder / "queries.npy", draw(_NUM_TUNING + _NUM_QUERIES, 1.5))
  # The file gets its name when it is complete.
  unfinished = made.with_suffix(".unfinished")
  array = np.lib.format.open_memmap(
    unfinished, mode="w+", dtype=np.float32, shape=(num_blocks, _DIM)
  )
  for start in range(0, num_blocks, _ROWS_PER_CHUNK):
    part = array[start : start + _ROWS_PER_CHUNK]
    part[:] = draw(len(part), 1.0)
  array.flush()
  os.replace(unfinished, made)
