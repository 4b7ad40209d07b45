"""Vectors and queries for the benchmark of indexes, in files.

A folder has `vectors.npy`, float32 [N, d], and `queries.npy`, of which the
first are for tuning. `trained_vectors` writes such a folder for a trained run.
Two kinds are generated:

- `clustered`: 3,000 groups, as many as no index has leaves or lists, whose
  sizes follow Zipf's law and whose spreads differ; queries spread wider.
- `spectrum`: one Gaussian without groups, whose variances fall by a power law.
"""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from realm_jax.indexes.protocol import QueryBatch

_DIM = 128
_GROUPS = 3000
_ROWS_PER_CHUNK = 1 << 16
_NUM_TUNING, _NUM_QUERIES = 256, 512

# Draws so many vectors, with noise of so many times its spread.
_Draw = Callable[[np.random.Generator, int, float], np.ndarray]


def vectors(folder: Path) -> Float32[np.ndarray, "n d"]:
  """Maps the vectors of a folder."""
  return np.load(folder / "vectors.npy", mmap_mode="r", allow_pickle=False)


def queries(folder: Path) -> tuple[QueryBatch, QueryBatch]:
  """Returns the queries to tune an index with, and those to measure it with."""
  both = np.load(folder / "queries.npy", allow_pickle=False).astype(np.float32)
  tuning, measured = both[:_NUM_TUNING], both[_NUM_TUNING:][:_NUM_QUERIES]
  return QueryBatch.of_vectors(tuning), QueryBatch.of_vectors(measured)


def generate(
  kind: str, folder: Path, num_blocks: int, *, seed: int = 0
) -> None:
  """Generates vectors and queries, unless the folder has them already.

  Args:
    kind: One of `GENERATED`.
    folder: Folder of the two files.
    num_blocks: Number of vectors.
    seed: Seed of all random numbers.
  """
  made = folder / "vectors.npy"
  if made.exists():
    return
  folder.mkdir(parents=True, exist_ok=True)
  of_groups, of_queries, rng = np.random.default_rng(seed).spawn(3)
  draw = GENERATED[kind](of_groups)
  asked = draw(of_queries, _NUM_TUNING + _NUM_QUERIES, 1.5)
  np.save(folder / "queries.npy", asked)
  # The file gets its name when it is complete.
  unfinished = made.with_suffix(".unfinished")
  array = np.lib.format.open_memmap(
    unfinished, mode="w+", dtype=np.float32, shape=(num_blocks, _DIM)
  )
  for start in range(0, num_blocks, _ROWS_PER_CHUNK):
    part = array[start : start + _ROWS_PER_CHUNK]
    part[:] = draw(rng, len(part), 1.0)
  array.flush()
  os.replace(unfinished, made)


def _clustered(rng: np.random.Generator) -> _Draw:
  centres = rng.standard_normal((_GROUPS, _DIM), np.float32)
  spreads = rng.uniform(0.3, 1.0, (_GROUPS, 1)).astype(np.float32)
  shares = 1 / np.arange(1, _GROUPS + 1)
  shares /= shares.sum()

  def draw(rng: np.random.Generator, count: int, noise: float) -> np.ndarray:
    groups = rng.choice(_GROUPS, count, p=shares)
    drawn = rng.standard_normal((count, _DIM), np.float32)
    return centres[groups] + np.float32(noise) * spreads[groups] * drawn

  return draw


def _spectrum(rng: np.random.Generator) -> _Draw:
  axes, _ = np.linalg.qr(rng.standard_normal((_DIM, _DIM)))
  scales = np.arange(1, _DIM + 1)[:, None] ** -0.5
  axes = (scales * axes).astype(np.float32)

  def draw(rng: np.random.Generator, count: int, noise: float) -> np.ndarray:
    del noise  # There are no groups to be near to.
    return rng.standard_normal((count, _DIM), np.float32) @ axes

  return draw


GENERATED = {"clustered": _clustered, "spectrum": _spectrum}
