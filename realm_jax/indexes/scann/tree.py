"""Trains and writes a tree for ScaNN, with a part of the corpus in memory.

The work consists of matrix products and runs on jax's default device: the
index builder's accelerator, or its CPU cores.
"""

import collections
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32

from realm_jax.indexes.protocol import Rows
from realm_jax.indexes.scann import files, partitions, product_codes
from realm_jax.indexes.scann.files import Part, Trained
from realm_jax.indexes.scann.product_codes import NUM_CODES
from realm_jax.indexes.scann.settings import Structure
from realm_jax.storage.arrays import drop_pages

_ROWS_PER_PART = 1 << 14
# Parts that the devices compute while the host writes an earlier one.
_IN_FLIGHT = 2
# Consecutive rows that a sample takes together, because they read faster.
_ROWS_PER_RUN = 16
_CODEBOOK_SAMPLE = 1 << 16


# Each vector's leaf, and its codes in it.
_Assigned = tuple[Array, Array]


def draw(
  vectors: Rows, count: int, *, seed: int = 0
) -> Float32[np.ndarray, "n d"]:
  """Returns about `count` random vectors in random order, at most all."""
  rng = np.random.default_rng(seed)
  num_blocks, _ = vectors.shape
  if num_blocks <= count:
    sample = np.asarray(vectors[0:num_blocks], np.float32)
  else:
    size, num_runs = _ROWS_PER_RUN, num_blocks // _ROWS_PER_RUN
    runs = rng.choice(num_runs, min(-(-count // size), num_runs), False)
    sample = np.concatenate(
      [vectors[run * size : (run + 1) * size] for run in np.sort(runs).tolist()]
    ).astype(np.float32)
  return sample[rng.permutation(len(sample))]


def train(
  sample: Float32[np.ndarray, "n d"],
  structure: Structure,
  *,
  seed: int = 0,
) -> Trained:
  """Trains leaves and codebooks; the same sample gives the same.

  Raises:
    ValueError: The sample has fewer vectors than there are leaves or codes, or
      `dims_per_code` does not divide the dimensions.
  """
  dim = sample.shape[1]
  if dim % structure.dims_per_code or len(sample) < NUM_CODES:
    raise ValueError(
      f"dims_per_code={structure.dims_per_code} for {len(sample)} vectors of "
      f"{dim} dimensions; want a divisor, and at least {NUM_CODES} vectors"
    )
  centroids = partitions.train_leaves(sample, structure.num_leaves, seed=seed)
  leaves = np.asarray(partitions.assign(sample, centroids))
  some = sample[:_CODEBOOK_SAMPLE]
  codebooks = product_codes.train_codebooks(
    some - centroids[leaves[: len(some)]], dims_per_code=structure.dims_per_code
  )
  return Trained(centroids, np.asarray(codebooks))


def write(
  directory: Path,
  vectors: Rows,
  structure: Structure,
  trained: Trained,
  *,
  check: Callable[[], None] = lambda: None,
) -> None:
  """Assigns leaves and codes to every vector, and writes ScaNN's files.

  The vectors, [N, d], are read in order and in parts. The directory is empty or
  new. `check` is called before each part; its exceptions end the work.

  Raises:
    OSError: The disk is full.
  """
  parts = _placed(vectors, trained, check)
  files.write(directory, structure, trained, parts, num_blocks=vectors.shape[0])


def _placed(
  vectors: Rows,
  trained: Trained,
  check: Callable[[], None],
) -> Iterator[Part]:
  """Yields the rows in parts, while the devices compute the next ones."""
  centroids, codebooks = map(jnp.asarray, trained)
  in_flight: collections.deque[tuple[np.ndarray, _Assigned]] = (
    collections.deque()
  )

  def finish_oldest() -> Iterator[Part]:
    part, placed = in_flight.popleft()
    leaves, codes = jax.tree.map(
      lambda array: array[: len(part)], jax.device_get(placed)
    )
    yield np.asarray(part, np.float32), leaves, codes
    drop_pages(part)

  # Every part is padded to one size, for which alone the program is compiled.
  num_blocks, _ = vectors.shape
  size = min(_ROWS_PER_PART, num_blocks)
  for start in range(0, num_blocks, size):
    check()
    part = vectors[start : start + size]
    padded = np.pad(part, ((0, size - len(part)), (0, 0))).astype(np.float32)
    in_flight.append((part, _place(padded, centroids, codebooks)))
    if len(in_flight) > _IN_FLIGHT:
      yield from finish_oldest()
  while in_flight:
    yield from finish_oldest()


@jax.jit
def _place(
  vectors: Float[Array, "n d"],
  centroids: Float[Array, "l d"],
  codebooks: Float[Array, "s 16 w"],
) -> _Assigned:
  leaves = partitions.assign(vectors, centroids)
  return leaves, product_codes.encode(vectors - centroids[leaves], codebooks)
