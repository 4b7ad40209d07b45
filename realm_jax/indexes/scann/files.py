"""The files that ScaNN loads a searcher from, written by us.

ScaNN's own builder trains and encodes in one call, in memory, on CPUs. A
loaded searcher depends only on files: centroids, codebooks, each vector's leaf
and codes, and the vectors for reordering. So we write these files, a part of
the corpus at a time, and with centroids and codebooks of an earlier generation
where those still serve.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from jaxtyping import Float, Float32, Int, Integer

from realm_jax.files import npy
from realm_jax.indexes.protocol import IndexLoadError
from realm_jax.indexes.scann import library as scann
from realm_jax.indexes.scann.settings import Structure, check_minimums

_PARTITIONER_PROTO = "partitioning.partitioner_pb2"
_CENTERS_PROTO = "proto.centers_pb2"
_PARTITIONER = "serialized_partitioner.pb"
_CODEBOOKS = "ah_codebook.pb"
_TREE = "tree.json"
_CONFIG = "scann_config.pb"
_ASSETS = "scann_assets.pbtxt"
_LEAVES = "datapoint_to_token.npy"
_CODES = "hashed_dataset.npy"
_SECOND_CODES = "hashed_dataset_soar.npy"
_MULTIPLIERS = "int8_multipliers.npy"
_NORMS = "dp_norms.npy"
# File, type of its elements, and asset type, by type of reordering.
_VECTORS = {
  "float32": ("dataset.npy", np.float32, "DATASET_NPY"),
  "bfloat16": ("bfloat16_dataset.npy", np.int16, "BF16_DATASET_NPY"),
  "int8": ("int8_dataset.npy", np.int8, "INT8_DATASET_NPY"),
}


@dataclasses.dataclass(frozen=True)
class Tree:
  """A tree, and how much of it a search uses.

  Attributes:
    structure: Structure of the tree.
    leaves_searched: Number of leaves that a query searches.
    num_reordered: Number of the best by code that are scored again.
  """

  structure: Structure
  leaves_searched: int
  num_reordered: int

  def __post_init__(self) -> None:
    check_minimums(self, {"leaves_searched": 1, "num_reordered": 1})


class TreeWriter:
  """The arrays of a tree, memory-mapped and filled in parts.

  Args:
    directory: Directory for the files, empty or new.
    structure: Structure of the tree.
    num_blocks: Number of blocks, N.
    dim: Number of dimensions, d.
    scales: Factor of each dimension that makes int8 vectors; unused for other
      types.
  """

  def __init__(
    self,
    directory: Path,
    structure: Structure,
    *,
    num_blocks: int,
    dim: int,
    scales: Float32[np.ndarray, " d"],
  ):
    directory.mkdir(parents=True, exist_ok=True)
    self._directory, self._structure = directory, structure
    self._scales = scales
    codes = (num_blocks, dim // structure.dims_per_code)
    names = [_CODES, _SECOND_CODES][: 1 + structure.spilled]
    name, dtype, _ = _VECTORS[structure.reordering]
    # ScaNN reads leaves as one flat array.
    self._flat_leaves = self._new(_LEAVES, np.int32, (num_blocks * len(names),))
    self._leaves = self._flat_leaves.reshape(num_blocks, len(names))
    self._codes = [self._new(name, np.uint8, codes) for name in names]
    self._vectors = self._new(name, dtype, (num_blocks, dim))

  def _new(
    self, name: str, dtype: type[np.generic], shape: tuple[int, ...]
  ) -> np.memmap:
    return npy.create_mapped(self._directory / name, dtype, shape)

  def write(
    self,
    start: int,
    vectors: Float[np.ndarray, "n d"],
    leaves: Sequence[Int[np.ndarray, " n"]],
    codes: Sequence[Integer[np.ndarray, "n s"]],
  ) -> None:
    """Writes consecutive rows.

    Args:
      start: First row.
      vectors: Embeddings of the rows.
      leaves: First leaf and, where there is one, second leaf of each vector.
      codes: Codes of each vector in those leaves.
    """
    rows = slice(start, start + len(vectors))
    self._leaves[rows] = np.stack(leaves, axis=1)
    for array, part in zip(self._codes, codes, strict=True):
      array[rows] = part
    self._vectors[rows] = self._quantized(vectors)

  def _quantized(self, vectors: Float[np.ndarray, "n d"]) -> np.ndarray:
    if self._structure.reordering == "bfloat16":
      return vectors.astype(ml_dtypes.bfloat16).view(np.int16)
    if self._structure.reordering == "int8":
      return np.rint(vectors * self._scales).clip(-127, 127).astype(np.int8)
    return vectors

  def close(
    self,
    centroids: Float32[np.ndarray, "l d"],
    codebooks: Float32[np.ndarray, "s 16 w"],
  ) -> None:
    """Writes the small files, except `write_tree`'s, and flushes the arrays."""
    for array in (self._flat_leaves, *self._codes, self._vectors):
      array.flush()
    directory, structure = self._directory, self._structure
    (directory / _PARTITIONER).write_bytes(_partitioner(centroids))
    (directory / _CODEBOOKS).write_bytes(_codebooks(codebooks))
    _write_config(directory, _config_of(structure, centroids.shape[1]))
    vectors, _, vectors_type = _VECTORS[structure.reordering]
    assets = {
      "PARTITIONER": _PARTITIONER,
      "AH_CENTERS": _CODEBOOKS,
      "TOKENIZATION_NPY": _LEAVES,
      "AH_DATASET_NPY": _CODES,
      vectors_type: vectors,
    }
    if structure.spilled:
      assets["AH_DATASET_SOAR_NPY"] = _SECOND_CODES
    if structure.reordering == "int8":
      npy.save(directory / _MULTIPLIERS, self._scales)
      npy.save(directory / _NORMS, np.zeros(0, np.float32))
      assets["INT8_MULTIPLIERS_NPY"] = _MULTIPLIERS
      assets["INT8_NORMS_NPY"] = _NORMS
    _write_assets(directory, assets)


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
    return Tree(
      structure=Structure(**values["structure"]),
      leaves_searched=values["leaves_searched"],
      num_reordered=values["num_reordered"],
    )
  except (OSError, ValueError, TypeError, KeyError) as error:
    raise IndexLoadError(
      f"{path} cannot be read ({error!r}); build the index again"
    ) from error


def read_trained(
  directory: Path,
) -> tuple[Float32[np.ndarray, "l d"], Float32[np.ndarray, "s 16 w"]]:
  """Reads the centroids of the leaves and the codebooks of a tree.

  Raises:
    IndexLoadError: The files cannot be read.
  """
  partitioner = _read(
    directory / _PARTITIONER, _PARTITIONER_PROTO, "SerializedPartitioner"
  )
  codebooks = _read(
    directory / _CODEBOOKS, _CENTERS_PROTO, "CentersForAllSubspaces"
  )
  centroids = partitioner.kmeans.kmeans_tree.root.centers
  try:
    return (
      np.array([c.dimension for c in centroids], np.float32),
      np.array(
        [
          [c.feature_value_float for c in piece.center]
          for piece in codebooks.subspace_centers
        ],
        np.float32,
      ),
    )
  except ValueError as error:
    raise IndexLoadError(
      f"the codebooks of {directory} have different sizes ({error})"
    ) from error


def load(directory: Path) -> Any:
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


def _config_of(structure: Structure, dim: int) -> str:
  """Returns the configuration that ScaNN's builder makes, as text."""
  vectors = np.zeros((1, dim), np.float32)
  builder = scann.library().builder(vectors, 10, "dot_product")
  # Each search sets the number of leaves and of reordered vectors itself.
  builder.tree(
    structure.num_leaves,
    num_leaves_to_search=1,
    spherical=structure.spherical,
    soar_lambda=structure.soar_lambda or None,
  )
  builder.score_ah(structure.dims_per_code)
  builder.reorder(1, quantize=scann.reorder_type(structure.reordering))
  return builder.create_config()


def _write_config(directory: Path, text: str) -> None:
  from google.protobuf import text_format

  config = scann.proto("proto.scann_pb2").ScannConfig()
  text_format.Parse(text, config)
  (directory / _CONFIG).write_bytes(config.SerializeToString())


def _write_assets(directory: Path, assets: Mapping[str, str]) -> None:
  text = "".join(
    f'assets {{\n  asset_type: {kind}\n  asset_path: "{name}"\n}}\n'
    for kind, name in assets.items()
  )
  (directory / _ASSETS).write_text(text)


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
