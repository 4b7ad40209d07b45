"""Trains a tree, and writes it in ScaNN's formats part by part.

The work consists of matrix products and runs on jax's default device: the
index builder's accelerator, or its CPU cores. The formats are private; they
were read from ScaNN 1.4.2.
"""

import collections
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jaxtyping import Array, Float, Float32
from numpy.typing import DTypeLike

from realm_jax.indexes.protocol import IndexLoadError, Rows
from realm_jax.indexes.scann import partitions, product_codes
from realm_jax.indexes.scann.index import library
from realm_jax.indexes.scann.product_codes import NUM_CODES
from realm_jax.storage.arrays import create_mapped_array, drop_pages

# The version whose formats are written.
FORMATS_VERSION = "1.4.2"

_ROWS_PER_PART = 1 << 14
# Parts that the devices compute while the host writes an earlier one.
_IN_FLIGHT = 2
_CODEBOOK_SAMPLE = 1 << 16
_PARTITIONER_PROTO = "partitioning.partitioner_pb2"
_CENTERS_PROTO = "proto.centers_pb2"
_PARTITIONER = "serialized_partitioner.pb"
_CODEBOOKS = "ah_codebook.pb"
_CONFIG = "scann_config.pb"
_ASSETS = "scann_assets.pbtxt"
_LEAVES = "datapoint_to_token.npy"
_CODES = "hashed_dataset.npy"
# File, type of its elements, and asset type, by type of reordering.
_VECTORS = {
  "float32": ("dataset.npy", np.float32, "DATASET_NPY"),
  "bfloat16": ("bfloat16_dataset.npy", np.int16, "BF16_DATASET_NPY"),
}

# Each vector's leaf, and its codes in it.
_Assigned = tuple[Array, Array]


class Trained(NamedTuple):
  """Centroids of leaves and of residuals' pieces, learnt from a sample."""

  centroids: Float32[np.ndarray, "l d"]
  codebooks: Float32[np.ndarray, "s 16 w"]


def train(
  sample: Float32[np.ndarray, "n d"],
  num_leaves: int,
  dims_per_code: int,
  *,
  seed: int = 0,
) -> Trained:
  """Trains leaves and codebooks; the same sample gives the same.

  Raises:
    ValueError: The sample has fewer vectors than there are leaves or codes, or
      `dims_per_code` does not divide the dimensions.
  """
  dim = sample.shape[1]
  if dim % dims_per_code or len(sample) < NUM_CODES:
    raise ValueError(
      f"dims_per_code={dims_per_code} for {len(sample)} vectors of {dim} "
      f"dimensions; want a divisor, and at least {NUM_CODES} vectors"
    )
  centroids = partitions.train_leaves(sample, num_leaves, seed=seed)
  leaves = np.asarray(partitions.assign(sample, centroids))
  some = sample[:_CODEBOOK_SAMPLE]
  codebooks = product_codes.train_codebooks(
    some - centroids[leaves[: len(some)]], dims_per_code=dims_per_code
  )
  return Trained(centroids, np.asarray(codebooks))


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

  Args:
    directory: Directory, which is empty or new.
    vectors: Vectors, [N, d], which are read in order and in parts.
    trained: Leaves and codebooks.
    searcher_config: Configuration of ScaNN's builder, as text.
    reordering: Type of the vectors that are scored again.
    check: Function called before each part; its exceptions end the work.

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
  start = 0
  for part, placed in _placed(vectors, trained, check):
    rows = slice(start, start + len(part))
    leaves[rows], codes[rows] = placed
    if reordering == "bfloat16":
      stored[rows] = part.astype(ml_dtypes.bfloat16).view(np.int16)
    else:
      stored[rows] = part
    drop_pages(part)
    start = rows.stop
  for array in (leaves, codes, stored):
    array.flush()
  config = _proto("proto.scann_pb2").ScannConfig()
  text_format.Parse(searcher_config, config)
  (directory / _CONFIG).write_bytes(config.SerializeToString())
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
  (directory / _ASSETS).write_text(text)


def _placed(
  vectors: Rows, trained: Trained, check: Callable[[], None]
) -> Iterator[tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]]:
  """Yields parts of the rows with their leaves and codes.

  The devices compute the next parts meanwhile.
  """
  centroids, codebooks = map(jnp.asarray, trained)
  in_flight: collections.deque[tuple[np.ndarray, _Assigned]] = (
    collections.deque()
  )

  def oldest() -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    part, placed = in_flight.popleft()
    leaves, codes = jax.device_get(placed)
    return part, (leaves[: len(part)], codes[: len(part)])

  # Every part is padded to one size, for which alone the program is compiled.
  num_blocks, _ = vectors.shape
  size = min(_ROWS_PER_PART, num_blocks)
  for start in range(0, num_blocks, size):
    check()
    part = vectors[start : start + size]
    padded = np.pad(part, ((0, size - len(part)), (0, 0))).astype(np.float32)
    in_flight.append((part, _place(padded, centroids, codebooks)))
    if len(in_flight) > _IN_FLIGHT:
      yield oldest()
  while in_flight:
    yield oldest()


@jax.jit
def _place(
  vectors: Float[Array, "n d"],
  centroids: Float[Array, "l d"],
  codebooks: Float[Array, "s 16 w"],
) -> _Assigned:
  leaves = partitions.assign(vectors, centroids)
  return leaves, product_codes.encode(vectors - centroids[leaves], codebooks)


def read_trained(
  directory: Path, num_leaves: int, dims_per_code: int, dim: int
) -> Trained:
  """Reads the centroids and codebooks of a tree over vectors of dimension d.

  Raises:
    IndexLoadError: The files cannot be read, or do not fit.
  """
  partitioner = _read(
    directory / _PARTITIONER, _PARTITIONER_PROTO, "SerializedPartitioner"
  )
  codebooks = _read(
    directory / _CODEBOOKS, _CENTERS_PROTO, "CentersForAllSubspaces"
  )
  leaves = partitioner.kmeans.kmeans_tree.root.centers
  pieces = codebooks.subspace_centers
  wanted = [(num_leaves, dim), (dim // dims_per_code, NUM_CODES, dims_per_code)]
  try:
    trained = Trained(
      np.array([c.dimension for c in leaves], np.float32),
      np.array(
        [[c.feature_value_float for c in p.center] for p in pieces], np.float32
      ),
    )
    if (shapes := [array.shape for array in trained]) != wanted:
      raise ValueError(f"they have the shapes {shapes}, and not {wanted}")
    return trained
  except ValueError as error:
    raise IndexLoadError(
      f"the centroids and codebooks of {directory} do not fit ({error})"
    ) from error


def _partitioner(centroids: Float32[np.ndarray, "l d"]) -> bytes:
  message = _proto(_PARTITIONER_PROTO).SerializedPartitioner(
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
  message = _proto(_CENTERS_PROTO).CentersForAllSubspaces()
  for piece in codebooks:
    subspace = message.subspace_centers.add()
    for centroid in piece:
      vector = subspace.center.add()
      vector.feature_type = vector.FLOAT
      vector.feature_value_float.extend(centroid.tolist())
  return message.SerializeToString()


def _read(path: Path, module: str, name: str) -> Any:
  """Returns the message of a type that a file holds."""
  from google.protobuf.message import DecodeError

  message = getattr(_proto(module), name)()
  try:
    message.ParseFromString(path.read_bytes())
  except (OSError, DecodeError) as error:
    raise IndexLoadError(
      f"{path} cannot be read ({error}); build the index again"
    ) from error
  return message


def _proto(name: str) -> Any:
  """Returns a module of ScaNN's protocol buffers, as `proto.scann_pb2`."""
  library()
  return importlib.import_module(f"scann.{name}")
