"""Writes a tree in ScaNN's formats, part by part.

Leaves and codes are computed on jax's default device: the index builder's
accelerator, or its CPU cores. The formats are private; they were read from
ScaNN 1.4.2.
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jaxtyping import Array, Float, Float32
from numpy.typing import DTypeLike

from realm_jax.indexes.protocol import Rows
from realm_jax.indexes.scann import training
from realm_jax.indexes.scann.index import library
from realm_jax.indexes.scann.training import Trained
from realm_jax.storage.local_disk import create_mapped_array, drop_pages

# The version whose formats are written.
FORMATS_VERSION = "1.4.2"

_ROWS_PER_PART = 1 << 14
_PARTITIONER = "serialized_partitioner.pb"
_CODEBOOKS = "ah_codebook.pb"
_LEAVES = "datapoint_to_token.npy"
_CODES = "hashed_dataset.npy"
# File, type of its elements, and asset type, by type of reordering.
_VECTORS = {
  "float32": ("dataset.npy", np.float32, "DATASET_NPY"),
  "bfloat16": ("bfloat16_dataset.npy", np.int16, "BF16_DATASET_NPY"),
}

# Each vector's leaf, and its codes in it.
_Assigned = tuple[Array, Array]


def write(
  directory: Path,
  vectors: Rows,
  trained: Trained,
  searcher_config: str,
  *,
  reordering: str,
  check: Callable[[], None] = lambda: None,
) -> None:
  """Assigns leaves and codes to every vector, and writes ScaNN's files.

  The directory is empty or new. The vectors, [N, d], are read in order and in
  parts. Those that are scored again are stored in the type `reordering`. The
  `searcher_config` is that of ScaNN's builder, as text. The function `check` is
  called before each part; its exceptions end the work.

  Raises:
    OSError: The disk is full.
  """
  from google.protobuf import text_format

  directory.mkdir(parents=True, exist_ok=True)

  def create(name: str, dtype: DTypeLike, *shape: int) -> np.memmap:
    return create_mapped_array(directory / name, dtype, shape)

  num_blocks, dim = vectors.shape
  leaves = create(_LEAVES, np.int32, num_blocks)
  codes = create(_CODES, np.uint8, num_blocks, len(trained.codebooks))
  name, dtype, asset_type = _VECTORS[reordering]
  stored = create(name, dtype, num_blocks, dim)

  def store(start: int, part: np.ndarray, placed: _Assigned) -> None:
    rows = slice(start, start + len(part))
    leaves[rows], codes[rows] = (x[: len(part)] for x in jax.device_get(placed))
    if reordering == "bfloat16":
      stored[rows] = part.astype(ml_dtypes.bfloat16).view(np.int16)
    else:
      stored[rows] = part
    drop_pages(part)

  centroids, codebooks = map(jnp.asarray, trained)
  # Every part is padded to one size, for which alone the program is compiled.
  size = min(_ROWS_PER_PART, num_blocks)
  waiting: list[tuple[int, np.ndarray, _Assigned]] = []
  for start in range(0, num_blocks, size):
    check()
    part = vectors[start : start + size]
    padded = np.pad(part, ((0, size - len(part)), (0, 0))).astype(np.float32)
    waiting.append((start, part, _place(padded, centroids, codebooks)))
    # The devices compute a part while the host writes the one before.
    if len(waiting) > 1:
      store(*waiting.pop(0))
  store(*waiting.pop())
  for array in (leaves, codes, stored):
    array.flush()
  config = _proto("proto.scann_pb2").ScannConfig()
  text_format.Parse(searcher_config, config)
  (directory / "scann_config.pb").write_bytes(config.SerializeToString())
  (directory / _PARTITIONER).write_bytes(_partitioner(trained.centroids))
  (directory / _CODEBOOKS).write_bytes(_codebooks(trained.codebooks))
  assets = {
    "PARTITIONER": _PARTITIONER,
    "AH_CENTERS": _CODEBOOKS,
    "TOKENIZATION_NPY": _LEAVES,
    "AH_DATASET_NPY": _CODES,
    asset_type: name,
  }
  text = "".join(
    f'assets {{\n  asset_type: {kind}\n  asset_path: "{name}"\n}}\n'
    for kind, name in assets.items()
  )
  (directory / "scann_assets.pbtxt").write_text(text)


@jax.jit
def _place(
  vectors: Float[Array, "n d"],
  centroids: Float[Array, "l d"],
  codebooks: Float[Array, "s 16 w"],
) -> _Assigned:
  leaves = training.assign(vectors, centroids)
  return leaves, training.encode(vectors - centroids[leaves], codebooks)


def _partitioner(centroids: Float32[np.ndarray, "l d"]) -> bytes:
  message = _proto("partitioning.partitioner_pb2").SerializedPartitioner(
    n_tokens=len(centroids), uses_projection=False
  )
  root = message.kmeans.kmeans_tree.root
  root.learned_spilling_threshold = float("nan")
  root.leaf_id = -1
  for leaf, centroid in enumerate(centroids.astype(np.float64)):
    root.centers.add().dimension.extend(centroid.tolist())
    root.children.add(leaf_id=leaf, learned_spilling_threshold=float("nan"))
  return message.SerializeToString()


def _codebooks(codebooks: Float32[np.ndarray, "s 16 w"]) -> bytes:
  message = _proto("proto.centers_pb2").CentersForAllSubspaces()
  for piece in codebooks:
    subspace = message.subspace_centers.add()
    for centroid in piece:
      vector = subspace.center.add()
      vector.feature_type = vector.FLOAT
      vector.feature_value_float.extend(centroid.tolist())
  return message.SerializeToString()


def _proto(name: str) -> Any:
  """Returns a module of ScaNN's protocol buffers, as `proto.scann_pb2`."""
  library()
  return importlib.import_module(f"scann.{name}")
