"""The files that ScaNN loads a searcher from, written by us.

ScaNN's own builder trains and encodes in one piece, in memory, on CPUs. A
searcher that is loaded asks only for files: leaves, codebooks, each vector's
leaf and codes, and the vectors that the best are scored with again. So they
are made here, a part of the corpus at a time, and with leaves and codebooks of
an earlier generation where those still do.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from jaxtyping import Float32

from realm_jax.indexes import npy
from realm_jax.indexes.protocol import IndexLoadError
from realm_jax.indexes.scann import library as scann_library

REORDERINGS = ("float32", "bfloat16", "int8")

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
# By type of reordering: file, type of an element in it, and ScaNN's name.
_VECTORS = {
  "float32": ("dataset.npy", np.float32, "DATASET_NPY"),
  "bfloat16": ("bfloat16_dataset.npy", np.int16, "BF16_DATASET_NPY"),
  "int8": ("int8_dataset.npy", np.int8, "INT8_DATASET_NPY"),
}


def at_least(settings: Any, name: str, least: int) -> None:
  """Refuses a setting that is given and smaller.

  Raises:
    ValueError: it is.
  """
  value = getattr(settings, name)
  if value is not None and value < least:
    raise ValueError(f"{name}={value}; want at least {least}")


@dataclasses.dataclass(frozen=True)
class Structure:
  """What a tree is made like.

  Attributes:
    num_leaves: partitions of the vectors.
    spherical: whether leaves are made by direction alone.
    soar_lambda: λ of SOAR, which puts each vector into a second leaf; 0 is
      without.
    avq_threshold: T of centres that keep inner products (anisotropic vector
      quantization of the leaves); 0 is plain means.
    anisotropic_threshold: T of codes that keep inner products; 0 is without.
    dims_per_code: dimensions that share a 4-bit code.
    reordering: what the best by code are scored with again, one of
      `REORDERINGS`.
  """

  num_leaves: int
  spherical: bool = False
  soar_lambda: float = 0.0
  avq_threshold: float = 0.0
  anisotropic_threshold: float = 0.0
  dims_per_code: int = 2
  reordering: str = "bfloat16"

  def __post_init__(self):
    for name, least in (
      ("num_leaves", 1),
      ("soar_lambda", 0),
      ("dims_per_code", 1),
    ):
      at_least(self, name, least)
    for name in ("avq_threshold", "anisotropic_threshold"):
      if not 0 <= (value := getattr(self, name)) < 1:
        raise ValueError(f"{name}={value}; want 0 (without), or below 1")
    if self.reordering not in REORDERINGS:
      raise ValueError(
        f"reordering={self.reordering!r}; want one of {', '.join(REORDERINGS)}"
      )

  @property
  def spilled(self) -> bool:
    """Whether vectors have a second leaf."""
    return self.soar_lambda > 0


@dataclasses.dataclass(frozen=True)
class Tree:
  """A tree and how much of it a search looks at.

  Attributes:
    structure: of the tree.
    leaves_searched: for a query.
    num_reordered: how many of the best by code are scored again.
  """

  structure: Structure
  leaves_searched: int
  num_reordered: int

  def __post_init__(self):
    at_least(self, "leaves_searched", 1)
    at_least(self, "num_reordered", 1)


class TreeWriter:
  """The arrays of a tree, memory-mapped, and filled a part at a time.

  Args:
    directory: empty or new.
    structure: of the tree.
    num_blocks: N.
    dim: d.
    scales: [d], by which int8 vectors are multiplied; else unused.
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

  def _new(self, name: str, dtype: Any, shape: tuple[int, ...]) -> np.memmap:
    return npy.create_mapped(self._directory / name, dtype, shape)

  def write(
    self,
    start: int,
    vectors: np.ndarray,
    leaves: Sequence[np.ndarray],
    codes: Sequence[np.ndarray],
  ) -> None:
    """Consecutive rows from `start`.

    Args:
      start: the first row.
      vectors: [n, d].
      leaves: the first and, where there is one, the second leaf of each.
      codes: in those leaves.
    """
    rows = slice(start, start + len(vectors))
    self._leaves[rows] = np.stack(leaves, axis=1)
    for array, here in zip(self._codes, codes, strict=True):
      array[rows] = here
    self._vectors[rows] = self._reordered(vectors)

  def _reordered(self, vectors: np.ndarray) -> np.ndarray:
    if self._structure.reordering == "bfloat16":
      return vectors.astype(ml_dtypes.bfloat16).view(np.int16)
    if self._structure.reordering == "int8":
      return np.rint(vectors * self._scales).clip(-127, 127).astype(np.int8)
    return vectors

  def close(
    self,
    centres: Float32[np.ndarray, "l d"],
    codebooks: Float32[np.ndarray, "s 16 w"],
  ) -> None:
    """Writes the small files, but for `write_tree`, and everything out."""
    for array in (self._flat_leaves, *self._codes, self._vectors):
      array.flush()
    directory, structure = self._directory, self._structure
    (directory / _PARTITIONER).write_bytes(_partitioner(centres))
    (directory / _CODEBOOKS).write_bytes(_codebooks(codebooks))
    _write_config(directory, _tree_builder(structure, centres.shape[1]))
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


def write_brute_force(directory: Path, vectors: Any) -> None:
  """The files of a searcher that scores every vector.

  Raises:
    OSError: the disk is full.
  """
  directory.mkdir(parents=True, exist_ok=True)
  num_blocks, dim = vectors.shape
  name, dtype, vectors_type = _VECTORS["float32"]
  npy.save(directory / name, np.asarray(vectors[0:num_blocks], dtype))
  builder = _builder(dim)
  builder.score_brute_force()
  _write_config(directory, builder)
  _write_assets(directory, {vectors_type: name})


def write_tree(directory: Path, tree: Tree) -> None:
  """Writes what the other files do not say."""
  (directory / _TREE).write_text(json.dumps(dataclasses.asdict(tree)) + "\n")


def read_tree(directory: Path) -> Tree | None:
  """What `write_tree` wrote; None of a directory without a tree.

  Raises:
    IndexLoadError: it cannot be read.
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
  """The centres of the leaves and the codebooks of a tree.

  Raises:
    IndexLoadError: they cannot be read.
  """
  protos = scann_library.messages()
  partitioner = _read(
    directory / _PARTITIONER, protos.partitioner.SerializedPartitioner()
  )
  codebooks = _read(
    directory / _CODEBOOKS, protos.centers.CentersForAllSubspaces()
  )
  centres = partitioner.kmeans.kmeans_tree.root.centers
  return (
    np.array([c.dimension for c in centres], np.float32),
    np.array(
      [
        [c.feature_value_float for c in piece.center]
        for piece in codebooks.subspace_centers
      ],
      np.float32,
    ),
  )


def load(directory: Path) -> Any:
  """ScaNN's searcher over the files of a directory.

  Raises:
    IndexLoadError: ScaNN cannot read it, or would unpickle something.
  """
  if (directory / "scann_docids.pkl").exists():
    raise IndexLoadError(f"{directory} holds a pickle, which is never read")
  try:
    return scann_library.library().load_searcher(
      str(directory), assets_backcompat_shim=False
    )
  except (RuntimeError, ValueError, OSError) as error:
    raise IndexLoadError(
      f"ScaNN cannot read {directory}: {error}; build it again"
    ) from error


def _builder(dim: int) -> Any:
  return scann_library.library().builder(
    np.zeros((1, dim), np.float32), 10, "dot_product"
  )


def _tree_builder(structure: Structure, dim: int) -> Any:
  builder = _builder(dim)
  # How much is searched, every search says itself.
  builder.tree(
    structure.num_leaves,
    num_leaves_to_search=1,
    spherical=structure.spherical,
    soar_lambda=structure.soar_lambda if structure.spilled else None,
  )
  builder.score_ah(structure.dims_per_code)
  reorderings = scann_library.library().scann_builder.ReorderType
  builder.reorder(1, quantize=reorderings[structure.reordering.upper()])
  return builder


def _write_config(directory: Path, builder: Any) -> None:
  from google.protobuf import text_format

  config = scann_library.messages().scann.ScannConfig()
  text_format.Parse(builder.create_config(), config)
  (directory / _CONFIG).write_bytes(config.SerializeToString())


def _write_assets(directory: Path, assets: dict[str, str]) -> None:
  text = "".join(
    f'assets {{\n  asset_type: {kind}\n  asset_path: "{name}"\n}}\n'
    for kind, name in assets.items()
  )
  (directory / _ASSETS).write_text(text)


def _partitioner(centres: Float32[np.ndarray, "l d"]) -> bytes:
  message = scann_library.messages().partitioner.SerializedPartitioner(
    n_tokens=len(centres), uses_projection=False
  )
  root = message.kmeans.kmeans_tree.root
  root.learned_spilling_threshold = float("nan")
  root.leaf_id = -1
  for leaf, centre in enumerate(centres.astype(np.float64)):
    root.centers.add().dimension.extend(centre.tolist())
    root.children.add(leaf_id=leaf, learned_spilling_threshold=float("nan"))
  return message.SerializeToString()


def _codebooks(codebooks: Float32[np.ndarray, "s 16 w"]) -> bytes:
  message = scann_library.messages().centers.CentersForAllSubspaces()
  for piece in codebooks:
    subspace = message.subspace_centers.add()
    for centre in piece:
      vector = subspace.center.add()
      vector.feature_type = vector.FLOAT
      vector.feature_value_float.extend(centre.tolist())
  return message.SerializeToString()


def _read(path: Path, message: Any) -> Any:
  from google.protobuf.message import DecodeError

  try:
    message.ParseFromString(path.read_bytes())
  except (OSError, DecodeError) as error:
    raise IndexLoadError(
      f"{path} cannot be read ({error}); build the index again"
    ) from error
  return message
