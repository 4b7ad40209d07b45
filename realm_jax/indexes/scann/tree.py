"""Trains and writes a tree for ScaNN, a part of the corpus in memory at a time.

The work is matrix products and runs where jax does: on the builder's
accelerators, or its cores.
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

from realm_jax.indexes import mapped
from realm_jax.indexes.protocol import Rows
from realm_jax.indexes.scann import partitions, product_codes
from realm_jax.indexes.scann.files import Structure, TreeWriter
from realm_jax.indexes.scann.product_codes import anisotropic_weight

_ROWS_AT_ONCE = 1 << 14
# Parts that the devices work on while the host writes an earlier one.
_IN_FLIGHT = 2
# Neighbours on disk that a sample takes together.
_RUN = 16
_CODEBOOK_SAMPLE = 1 << 16
_SCALED_SAMPLE = 1 << 17


class Trained(NamedTuple):
  """What is learnt of a sample, and serves for all.

  Attributes:
    centres: of the leaves.
    codebooks: of the residuals' pieces.
  """

  centres: Float32[np.ndarray, "l d"]
  codebooks: Float32[np.ndarray, "s 16 w"]

  def fits(self, structure: Structure, *, dim: int) -> bool:
    """Whether it is for this structure, of vectors of so many dimensions."""
    width = structure.dims_per_code
    codebooks = (dim // width, product_codes.NUM_CODES, width)
    return (
      self.centres.shape == (structure.num_leaves, dim)
      and self.codebooks.shape == codebooks
    )


def draw(
  vectors: Rows, count: int, *, seed: int = 0
) -> Float32[np.ndarray, "n d"]:
  """A random sample in random order; everything, if that is fewer."""
  rng = np.random.default_rng(seed)
  num_blocks, _ = vectors.shape
  if num_blocks <= count:
    sample = np.asarray(vectors[0:num_blocks], np.float32)
  else:
    all_runs = num_blocks // _RUN
    runs = rng.choice(all_runs, min(-(-count // _RUN), all_runs), replace=False)
    sample = np.concatenate(
      [vectors[r * _RUN : (r + 1) * _RUN] for r in np.sort(runs).tolist()]
    ).astype(np.float32)
  return sample[rng.permutation(len(sample))]


def train(
  sample: Float32[np.ndarray, "n d"],
  structure: Structure,
  *,
  seed: int = 0,
) -> Trained:
  """Learns leaves and codebooks; the same of the same sample.

  Raises:
    ValueError: the sample has fewer vectors than there are leaves or codes, or
      codes do not divide the dimensions.
  """
  dim = sample.shape[1]
  if dim % structure.dims_per_code or len(sample) < product_codes.NUM_CODES:
    raise ValueError(
      f"dims_per_code={structure.dims_per_code} for {len(sample)} vectors of "
      f"{dim} dimensions; want a divisor, and at least "
      f"{product_codes.NUM_CODES} vectors"
    )
  centres = partitions.train_leaves(
    sample, structure.num_leaves, spherical=structure.spherical, seed=seed
  )
  leaves = np.asarray(
    partitions.assign(sample, centres, spherical=structure.spherical)
  )
  if structure.avq_threshold:
    centres = partitions.anisotropic_centres(
      sample, leaves, centres, anisotropic_weight(structure.avq_threshold, dim)
    )
  some = sample[:_CODEBOOK_SAMPLE]
  codebooks = product_codes.train_codebooks(
    some - centres[leaves[: len(some)]], dims_per_code=structure.dims_per_code
  )
  return Trained(centres, np.asarray(codebooks))


def write(
  directory: Path,
  vectors: Rows,
  structure: Structure,
  trained: Trained,
  *,
  check: Callable[[], None] = lambda: None,
) -> None:
  """Puts every vector into its leaf and codes, and writes ScaNN's files.

  Args:
    directory: empty or new.
    vectors: [N, d], read in order, a part at a time.
    structure: of the tree.
    trained: leaves and codebooks.
    check: called at every part; what it raises ends the work.

  Raises:
    OSError: the disk is full.
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
  placed = functools.partial(
    _placed,
    centres=jnp.asarray(trained.centres),
    codebooks=jnp.asarray(trained.codebooks),
    structure=structure,
  )
  in_flight: collections.deque = collections.deque()

  def write_oldest():
    start, part, found = in_flight.popleft()
    leaves, codes = jax.device_get(found)
    writer.write(
      start,
      np.asarray(part, np.float32),
      [array[: len(part)] for array in leaves],
      [array[: len(part)] for array in codes],
    )
    mapped.let_go(part)

  for start in range(0, num_blocks, _ROWS_AT_ONCE):
    check()
    part = vectors[start : start + _ROWS_AT_ONCE]
    # Whole parts alone are compiled for; a small corpus is one part.
    rows = min(_ROWS_AT_ONCE, num_blocks)
    padded = np.pad(part, ((0, rows - len(part)), (0, 0))).astype(np.float32)
    in_flight.append((start, part, placed(padded)))
    if len(in_flight) > _IN_FLIGHT:
      write_oldest()
  while in_flight:
    write_oldest()
  writer.close(trained.centres, trained.codebooks)


@functools.partial(jax.jit, static_argnames="structure")
def _placed(
  vectors: Float[Array, "n d"],
  centres: Float[Array, "l d"],
  codebooks: Float[Array, "s 16 w"],
  structure: Structure,
) -> tuple[list[Array], list[Array]]:
  """The leaves of each vector, and its codes in them."""
  first = partitions.assign(vectors, centres, spherical=structure.spherical)
  leaves: list[Array] = [first]
  if structure.spilled:
    leaves.append(
      partitions.assign_spilled(vectors, centres, first, structure.soar_lambda)
    )
  weight = anisotropic_weight(structure.anisotropic_threshold, len(vectors[0]))
  norms = jnp.linalg.norm(vectors, axis=1, keepdims=True)
  directions = vectors / jnp.maximum(norms, 1e-12)
  codes = [
    product_codes.encode(vectors - centres[leaf], codebooks, directions, weight)
    for leaf in leaves
  ]
  return leaves, codes


def _scales(vectors: Rows) -> Float32[np.ndarray, " d"]:
  """What each dimension is multiplied by to fill 8 bits.

  A sample tells the largest; the few that are larger are cut to it.
  """
  largest = np.abs(draw(vectors, _SCALED_SAMPLE)).max(axis=0)
  return (127 / np.maximum(largest, 1e-12)).astype(np.float32)
