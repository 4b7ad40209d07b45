"""ScaNN's own public builder: tree, asymmetric hashing and reordering.

It trains and encodes in one call, on CPUs, with all vectors in memory in
float32, and depends on no private format.
"""

import errno
from pathlib import Path
from typing import Any

import numpy as np

from realm_jax.indexes.protocol import Rows
from realm_jax.indexes.scann import library as scann
from realm_jax.indexes.scann.settings import Structure


def default_structure(num_leaves: int) -> Structure:
  """Returns the structure that ScaNN's documentation recommends."""
  return Structure(num_leaves, anisotropic_threshold=0.2, reordering="float32")


def write_tree(
  directory: Path,
  vectors: Rows,
  structure: Structure,
  *,
  training_sample: int | None = None,
) -> None:
  """Builds a searcher over a tree and serializes it.

  Args:
    directory: Directory for the files, empty or new.
    vectors: Embeddings, [N, d], all of which are read into memory.
    structure: Structure of the tree.
    training_sample: Number of vectors to train on; None is ScaNN's default.

  Raises:
    OSError: The disk is full.
  """
  builder = scann.library().builder(_in_memory(vectors), 10, "dot_product")
  sample = {}
  if training_sample is not None:
    sample["training_sample_size"] = training_sample
  # k-means++ from ScaNN's fixed seed repeats a build, and a random start does
  # not. Each search sets the number of leaves and of reordered vectors itself.
  builder.tree(
    structure.num_leaves,
    num_leaves_to_search=1,
    random_init=False,
    spherical=structure.spherical,
    avq=structure.avq_threshold or None,
    soar_lambda=structure.soar_lambda or None,
    **sample,
  )
  builder.score_ah(
    structure.dims_per_code,
    anisotropic_quantization_threshold=(
      structure.anisotropic_threshold or float("nan")
    ),
    **sample,
  )
  builder.reorder(1, quantize=scann.reorder_type(structure.reordering))
  _serialize(builder.build(), directory)


def write_brute_force(directory: Path, vectors: Rows) -> None:
  """Builds a searcher that scores every vector and serializes it.

  Raises:
    OSError: The disk is full.
  """
  builder = scann.library().builder(_in_memory(vectors), 10, "dot_product")
  builder.score_brute_force()
  _serialize(builder.build(), directory)


def _in_memory(vectors: Rows) -> np.ndarray:
  return np.ascontiguousarray(vectors[0 : vectors.shape[0]], np.float32)


def _serialize(searcher: Any, directory: Path) -> None:
  directory.mkdir(parents=True, exist_ok=True)
  try:
    searcher.serialize(str(directory), relative_path=True)
  except RuntimeError as error:
    # ScaNN's error does not say that the disk is full.
    raise OSError(
      errno.ENOSPC, f"cannot write ScaNN's files: {error}", str(directory)
    ) from error
