"""ScaNN's own public builder: tree, asymmetric hashing and reordering.

It trains and encodes in one call, on CPUs, with all vectors in memory in
float32, and depends on no private format.
"""

import errno
from pathlib import Path

import numpy as np

from realm_jax.indexes.protocol import Rows
from realm_jax.indexes.scann import library as scann
from realm_jax.indexes.scann.settings import Structure


def write(
  directory: Path,
  vectors: Rows,
  structure: Structure | None,
  *,
  training_sample: int | None = None,
) -> None:
  """Builds a searcher and serializes it into an empty or new directory.

  All vectors, [N, d], are read into memory. Without a structure, every vector
  is scored. A `training_sample` of None is ScaNN's default size.

  Raises:
    ValueError: ScaNN cannot build the structure over these vectors.
    OSError: The disk is full.
  """
  everything = np.ascontiguousarray(vectors[0 : vectors.shape[0]], np.float32)
  builder = scann.library().builder(everything, 10, "dot_product")
  if structure is None:
    builder.score_brute_force()
  else:
    sample = {}
    if training_sample is not None:
      sample["training_sample_size"] = training_sample
    # k-means++ from ScaNN's fixed seed repeats a build, and a random start
    # does not. Each search sets the number of leaves and of reordered vectors.
    builder.tree(
      structure.num_leaves,
      num_leaves_to_search=1,
      random_init=False,
      **sample,
    )
    # The threshold that ScaNN's documentation recommends.
    builder.score_ah(
      structure.dims_per_code,
      anisotropic_quantization_threshold=0.2,
      **sample,
    )
    builder.reorder(1, quantize=scann.reorder_type(structure.reordering))
  try:
    searcher = builder.build()
  except RuntimeError as error:
    raise ValueError(
      f"ScaNN cannot build {structure} over {len(everything)} vectors of "
      f"{everything.shape[1]} dimensions: {error}"
    ) from error
  directory.mkdir(parents=True, exist_ok=True)
  try:
    searcher.serialize(str(directory), relative_path=True)
  except RuntimeError as error:
    # ScaNN's error does not say that the disk is full.
    raise OSError(
      errno.ENOSPC, f"cannot write ScaNN's files: {error}", str(directory)
    ) from error
