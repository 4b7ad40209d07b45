"""Trains and writes a tree for ScaNN, with a part of the corpus in memory.

The work consists of matrix products and runs on jax's default device: the
index builder's accelerator, or its CPU cores.
"""

import collections
import functools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32

from realm_jax.files import mapped_pages
from realm_jax.indexes.protocol import Rows
from realm_jax.indexes.scann import partitions, product_codes
from realm_jax.indexes.scann.files import TreeWriter
from realm_jax.indexes.scann.product_codes import anisotropic_weight
from realm_jax.indexes.scann.settings import Structure

_ROWS_PER_PART = 1 << 14
# Parts that the devices compute while the host writes an earlier one.
_IN_FLIGHT = 2
# Consecutive rows that a sample takes together, because they read faster.
_ROWS_PER_RUN = 16
_CODEBOOK_SAMPLE = 1 << 16
_SCALES_SAMPLE = 1 << 17


class Trained(NamedTuple):
  """What training learns from a sample.

  Attributes:
    centroids: Centroids of the leaves.
    codebooks: Centroids of the residuals' pieces.
  """

  centroids: Float32[np.ndarray, "l d"]
  codebooks: Float32[np.ndarray, "s 16 w"]

  def fits(self, structure: Structure, *, dim: int) -> bool:
    """Returns whether the shapes fit a structure and vectors of dimension d."""
    width = structure.dims_per_code
    codebooks = (dim // width, product_codes.NUM_CODES, width)
    return (
      self.centroids.shape == (structure.num_leaves, dim)
      and self.codebooks.shape == codebooks
    )


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
  if dim % structure.dims_per_code or len(sample) < product_codes.NUM_CODES:
    raise ValueError(
      f"dims_per_code={structure.dims_per_code} for {len(sample)} vectors of "
      f"{dim} dimensions; want a divisor, and at least "
      f"{product_codes.NUM_CODES} vectors"
    )
  centroids = partitions.train_leaves(
    sample, structure.num_leaves, spherical=structure.spherical, seed=seed
  )
  leaves = np.asarray(
    partitions.assign(sample, centroids, spherical=structure.spherical)
  )
  if structure.avq_threshold:
    centroids = partitions.anisotropic_centroids(
      sample,
      leaves,
      centroids,
      anisotropic_weight(structure.avq_threshold, dim),
    )
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

  Args:
    directory: Directory for the files, empty or new.
    vectors: Embeddings, [N, d], read in order and in parts.
    structure: Structure of the tree.
    trained: Centroids and codebooks.
    check: Function that is called before each part; an exception it raises
      ends the work.

  Raises:
    OSError: The disk is full.
  """
  num_blocks, dim = vectors.shape
  writer = TreeWriter(
    directory,
    structure,
    num_blocks=num_blocks,
    dim=dim,
    scales=_scales(vectors)
    if structure.reordering == "int8"
    else np.ones(dim, np.float32),
  )
  centroids = jnp.asarray(trained.centroids)
  codebooks = jnp.asarray(trained.codebooks)
  in_flight: collections.deque[tuple[int, np.ndarray, _Placed]] = (
    collections.deque()
  )

  def write_oldest() -> None:
    start, part, placed = in_flight.popleft()
    leaves, codes = jax.device_get(placed)
    writer.write(
      start,
      np.asarray(part, np.float32),
      [array[: len(part)] for array in leaves],
      [array[: len(part)] for array in codes],
    )
    mapped_pages.drop_pages(part)

  # Every part is padded to one size, for which alone the program is compiled.
  size = min(_ROWS_PER_PART, num_blocks)
  for start in range(0, num_blocks, size):
    check()
    part = vectors[start : start + size]
    padded = np.pad(part, ((0, size - len(part)), (0, 0))).astype(np.float32)
    placed = _place(padded, centroids, codebooks, structure)
    in_flight.append((start, part, placed))
    if len(in_flight) > _IN_FLIGHT:
      write_oldest()
  while in_flight:
    write_oldest()
  writer.close(trained.centroids, trained.codebooks)


# Each vector's leaves, and its codes in them.
_Placed = tuple[list[Array], list[Array]]


@functools.partial(jax.jit, static_argnames="structure")
def _place(
  vectors: Float[Array, "n d"],
  centroids: Float[Array, "l d"],
  codebooks: Float[Array, "s 16 w"],
  structure: Structure,
) -> _Placed:
  """Returns the leaves of each vector, and its codes in them."""
  first = partitions.assign(vectors, centroids, spherical=structure.spherical)
  leaves: list[Array] = [first]
  if structure.spilled:
    leaves.append(
      partitions.assign_spilled(
        vectors, centroids, first, structure.soar_lambda
      )
    )
  weight = anisotropic_weight(structure.anisotropic_threshold, len(vectors[0]))
  norms = jnp.linalg.norm(vectors, axis=1, keepdims=True)
  directions = vectors / jnp.maximum(norms, 1e-12)
  codes = [
    product_codes.encode(
      vectors - centroids[leaf], codebooks, directions, weight
    )
    for leaf in leaves
  ]
  return leaves, codes


def _scales(vectors: Rows) -> Float32[np.ndarray, " d"]:
  """Returns the factors by which each dimension fills 8 bits.

  The largest value is that of a sample; the few larger ones are clipped.
  """
  largest = np.abs(draw(vectors, _SCALES_SAMPLE)).max(axis=0)
  return (127 / np.maximum(largest, 1e-12)).astype(np.float32)
