"""The files that ScaNN loads a searcher from, written by us.

They hold centroids, codebooks, each vector's leaf and codes, and the vectors
for reordering. We write them a part of the corpus at a time.
"""

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np
from jaxtyping import Float, Float32, Int, UInt8
from numpy.typing import DTypeLike

from realm_jax.indexes.protocol import IndexLoadError
from realm_jax.indexes.scann import library as scann
from realm_jax.indexes.scann.product_codes import NUM_CODES
from realm_jax.indexes.scann.settings import Structure
from realm_jax.settings import PositiveInt, require_valid
from realm_jax.storage.arrays import create_mapped_array

_PARTITIONER_PROTO = "partitioning.partitioner_pb2"
_CENTERS_PROTO = "proto.centers_pb2"
_PARTITIONER = "serialized_partitioner.pb"
_CODEBOOKS = "ah_codebook.pb"
_TREE = "tree.json"
_CONFIG = "scann_config.pb"
_ASSETS = "scann_assets.pbtxt"
_LEAVES = "datapoint_to_token.npy"
_CODES = "hashed_dataset.npy"
# File, type of its elements, and asset type, by type of reordering.
_VECTORS = {
  "float32": ("dataset.npy", np.float32, "DATASET_NPY"),
  "bfloat16": ("bfloat16_dataset.npy", np.int16, "BF16_DATASET_NPY"),
}

# Vectors of consecutive rows, their leaves, and their codes there.
Part: TypeAlias = tuple[
  Float[np.ndarray, "n d"],
  Int[np.ndarray, " n"],
  UInt8[np.ndarray, "n s"],
]


@dataclasses.dataclass(frozen=True)
class Tree:
  """A tree, and how much of it a search uses.

  A query searches `leaves_searched` leaves, and the `num_reordered` best by
  code are scored again.
  """

  structure: Structure
  leaves_searched: PositiveInt
  num_reordered: PositiveInt

  def __post_init__(self) -> None:
    require_valid(self)


class Trained(NamedTuple):
  """Centroids of leaves and of residuals' pieces, learnt from a sample."""

  centroids: Float32[np.ndarray, "l d"]
  codebooks: Float32[np.ndarray, "s 16 w"]


def write(
  directory: Path,
  structure: Structure,
  trained: Trained,
  parts: Iterable[Part],
  *,
  num_blocks: int,
) -> None:
  """Writes the files of a tree, except `write_tree`'s, in an empty directory.

  The parts hold all rows in order.

  Raises:
    OSError: The disk is full.
  """
  directory.mkdir(parents=True, exist_ok=True)

  def create(name: str, dtype: DTypeLike, *shape: int) -> np.memmap:
    return create_mapped_array(directory / name, dtype, shape)

  dim = trained.centroids.shape[1]
  leaves = create(_LEAVES, np.int32, num_blocks)
  codes = create(_CODES, np.uint8, num_blocks, dim // structure.dims_per_code)
  name, dtype, asset_type = _VECTORS[structure.reordering]
  vectors = create(name, dtype, num_blocks, dim)
  start = 0
  for part, part_leaves, part_codes in parts:
    rows = slice(start, start + len(part))
    leaves[rows], codes[rows] = part_leaves, part_codes
    if structure.reordering == "bfloat16":
      part = part.astype(ml_dtypes.bfloat16).view(np.int16)
    vectors[rows] = part
    start = rows.stop
  for array in (leaves, codes, vectors):
    array.flush()
  (directory / _PARTITIONER).write_bytes(_partitioner(trained.centroids))
  (directory / _CODEBOOKS).write_bytes(_codebooks(trained.codebooks))
  (directory / _CONFIG).write_bytes(_config(structure, dim))
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


def write_tree(directory: Path, tree: Tree) -> None:
  """Writes our own file, with what ScaNN's files do not store."""
  (directory / _TREE).write_text(json.dumps(dataclasses.asdict(tree)) + "\n")


def read_tree(directory: Path) -> Tree | None:
  """Reads what `write_tree` wrote; returns None if there is no tree.

  Raises:
    IndexLoadError: The file cannot be read.
  """
  path = directory / _TREE
  if not path.exists():
    return None
  try:
    values = json.loads(path.read_text())
    # Earlier trees had further settings, which a search does not need.
    names = {field.name for field in dataclasses.fields(Structure)}
    known = {k: v for k, v in values["structure"].items() if k in names}
    if known.get("reordering") == "int8":
      del known["reordering"]
    return Tree(
      structure=Structure(**known),
      leaves_searched=values["leaves_searched"],
      num_reordered=values["num_reordered"],
    )
  except (OSError, ValueError, TypeError, KeyError) as error:
    raise IndexLoadError(
      f"{path} cannot be read ({error!r}); build the index again"
    ) from error


def read_trained(directory: Path, structure: Structure, dim: int) -> Trained:
  """Reads the centroids and codebooks of a tree over vectors of dimension d.

  Raises:
    IndexLoadError: The files cannot be read, or do not fit the structure.
  """
  partitioner = _read(
    directory / _PARTITIONER, _PARTITIONER_PROTO, "SerializedPartitioner"
  )
  codebooks = _read(
    directory / _CODEBOOKS, _CENTERS_PROTO, "CentersForAllSubspaces"
  )
  leaves = partitioner.kmeans.kmeans_tree.root.centers
  pieces = codebooks.subspace_centers
  width = structure.dims_per_code
  wanted = [(structure.num_leaves, dim), (dim // width, NUM_CODES, width)]
  try:
    trained = Trained(
      np.array([c.dimension for c in leaves], np.float32),
      np.array(
        [[c.feature_value_float for c in p.center] for p in pieces], np.float32
      ),
    )
    if (shapes := [array.shape for array in trained]) != wanted:
      raise ValueError(f"they have the shapes {shapes}")
    return trained
  except ValueError as error:
    raise IndexLoadError(
      f"the centroids and codebooks of {directory} do not fit {structure} and "
      f"vectors of dimension {dim} ({error})"
    ) from error


def load_searcher(directory: Path) -> Any:
  """Loads ScaNN's searcher over the files of a directory.

  Raises:
    IndexLoadError: ScaNN cannot read it, or would unpickle something.
  """
  if (directory / "scann_docids.pkl").exists():
    raise IndexLoadError(f"{directory} holds a pickle, which is never read")
  library = scann.library()
  try:
    return library.load_searcher(str(directory), assets_backcompat_shim=False)
  except (RuntimeError, ValueError, OSError) as error:
    raise IndexLoadError(
      f"scann {scann.installed_version()} cannot read {directory}: {error}; "
      "build it again, with the version that is installed here (our own "
      f"builder supports {scann.FORMATS_VERSION})"
    ) from error


def _config(structure: Structure, dim: int) -> bytes:
  """Returns the configuration that ScaNN's builder makes."""
  from google.protobuf import text_format

  vectors = np.zeros((1, dim), np.float32)
  builder = scann.library().builder(vectors, 10, "dot_product")
  # Each search sets the number of leaves and of reordered vectors itself.
  builder.tree(structure.num_leaves, num_leaves_to_search=1)
  builder.score_ah(structure.dims_per_code)
  builder.reorder(1, quantize=scann.reorder_type(structure.reordering))
  config = scann.proto("proto.scann_pb2").ScannConfig()
  text_format.Parse(builder.create_config(), config)
  return config.SerializeToString()


def _partitioner(centroids: Float32[np.ndarray, "l d"]) -> bytes:
  message = scann.proto(_PARTITIONER_PROTO).SerializedPartitioner(
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
  message = scann.proto(_CENTERS_PROTO).CentersForAllSubspaces()
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

  message = getattr(scann.proto(module), name)()
  try:
    message.ParseFromString(path.read_bytes())
  except (OSError, DecodeError) as error:
    raise IndexLoadError(
      f"{path} cannot be read ({error}); build the index again"
    ) from error
  return message
