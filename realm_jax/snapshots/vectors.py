"""The vectors of a snapshot: drafts of them, memory maps, the query tower.

    snapshots/00000500/<identity>/
      embeddings-00003-of-00048-<sha256>.npy    a shard
      scann/ …                                  what process 0 adds at the end

Shards are written directly to their final paths. The identity is a checksum of
everything that determines the vectors, so a restarted builder finds only shards
that it can use. Each shard is embedded by one process and appears whole. Its
name includes its checksum, so a published file is never overwritten with other
bytes, and nothing needs to be locked, renamed or linked.
"""

import dataclasses
import hashlib
import io
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from etils import epath
from flax import traverse_util
from jaxtyping import Float, Float32, Int

from realm_jax.corpus.store import Corpus
from realm_jax.indexes.protocol import Blocks
from realm_jax.models.parameters import Params
from realm_jax.snapshots.manifest import Manifest, SnapshotError, StoredDtype
from realm_jax.storage.atomic import atomic_file
from realm_jax.storage.paths import sizes_below, upload_directory
from realm_jax.storage.staging import (
  DamagedFileError,
  FileRecord,
  StagedFiles,
  record_files,
)

# Maximum size of a file, whose vectors are in memory while they are embedded.
_MAX_SHARD_BYTES = 1 << 28
_PREFIX = "embeddings-"
_SHARD = re.compile(_PREFIX + r"(\d{5,})-of-\d{5,}-([0-9a-f]{64})\.npy")
# File with the parameters of the query tower that matches the vectors.
QUERY_TOWER = "query_tower/parameters.safetensors"


@dataclasses.dataclass(frozen=True)
class ShardLayout:
  """The division of vectors into files of `rows_per_shard` consecutive rows."""

  num_blocks: int
  dim: int
  dtype: StoredDtype
  rows_per_shard: int

  @classmethod
  def of(
    cls, num_blocks: int, dim: int, *, dtype: StoredDtype, max_rows: int
  ) -> "ShardLayout":
    """Returns a layout of about equal files, each of at most `max_rows`."""
    row_bytes = dim * np.dtype(dtype).itemsize
    max_rows = max(1, min(max_rows, _MAX_SHARD_BYTES // row_bytes))
    count = max(1, -(-num_blocks // max_rows))
    return cls(num_blocks, dim, dtype, max(1, -(-num_blocks // count)))

  def __len__(self) -> int:
    return -(-self.num_blocks // self.rows_per_shard)

  def rows(self, shard: int) -> Int[np.ndarray, " n"]:
    """Returns the rows of a file."""
    start = shard * self.rows_per_shard
    return np.arange(start, min(start + self.rows_per_shard, self.num_blocks))


class Draft:
  """The folder of one snapshot, in which processes write its shards."""

  def __init__(self, folder: epath.Path, layout: ShardLayout):
    self.folder = folder
    self.layout = layout

  def records(self) -> dict[int, FileRecord]:
    """Returns the files of existing shards, by number, in order."""
    records = {}
    for name, size in sorted(sizes_below(self.folder).items()):
      if match := _SHARD.fullmatch(name):
        records[int(match[1])] = FileRecord(name, size, match[2])
    return records

  def add(self, shard: int, vectors: Float[np.ndarray, "n d"]) -> None:
    """Writes the vectors of a shard.

    Raises:
      SnapshotError: A vector is not finite.
      OSError: The disk is full.
    """
    check_finite(vectors, self.layout.rows(shard))
    file = io.BytesIO()
    np.save(file, vectors.astype(self.layout.dtype, copy=False))
    content = file.getbuffer()
    checksum = hashlib.sha256(content).hexdigest()
    name = f"{_PREFIX}{shard:05d}-of-{len(self.layout):05d}-{checksum}.npy"
    with atomic_file(self.folder / name) as path:
      path.write_bytes(content)

  def verified(self, *, are_read: bool = True) -> StagedFiles:
    """Returns the files of all shards, local or copied.

    Unless they `are_read`, files in a bucket are not copied: they are complete,
    because objects appear whole. Left-overs of an interrupted build on a disk
    are removed.

    Raises:
      DamagedFileError: A shard is missing or damaged. A damaged one is removed,
        so that it is embedded again.
    """
    records = self.records()
    staged = StagedFiles(self.folder, records.values())
    bad = [str(i) for i in range(len(self.layout)) if i not in records]
    if are_read or not staged.is_copied:
      for path in staged.problems(staged.paths()):
        (self.folder / path).unlink(missing_ok=True)
        bad.append(path)
    if bad:
      raise DamagedFileError(
        f"shards {', '.join(bad)} in {self.folder} are missing or damaged: "
        "embedding their rows again"
      )
    # An index without vectors has written nothing yet.
    staged.root.mkdir(parents=True, exist_ok=True)
    for path in staged.root.iterdir():
      if path.is_dir():
        shutil.rmtree(path)
      elif path.name not in staged.paths():
        path.unlink()
    return staged

  def record_others(self, root: Path) -> tuple[FileRecord, ...]:
    """Returns records of the files in subfolders; copies them to the draft."""
    paths = sorted(
      str(path.relative_to(root))
      for path in root.glob("*/**/*")
      if path.is_file()
    )
    records = record_files(root, paths)
    if root != Path(self.folder):
      for folder in {path.partition("/")[0] for path in paths}:
        upload_directory(root / folder, self.folder / folder)
    return records


class Embeddings:
  """The vectors of a snapshot, memory-mapped file by file on first access.

  They are described by a manifest, or by the layout of a draft. Every access
  verifies or copies the files that it needs, and raises a SnapshotError if one
  differs from the manifest. `paths` has the paths of all files.
  """

  def __init__(self, files: StagedFiles, layout: Manifest | ShardLayout):
    self.paths = sorted(files.paths(_PREFIX))
    self._files = files
    num_blocks = layout.num_blocks if self.paths else 0
    self._rows_per_shard = -(-num_blocks // max(1, len(self.paths)))
    self.shape = (num_blocks, layout.dim)
    self.dtype = np.dtype(layout.dtype)
    self._maps: dict[int, np.ndarray] = {}

  def map_all(self) -> None:
    """Maps all files now. Maps stay readable if their files are removed."""
    self._files.get(self.paths)
    for shard in range(len(self.paths)):
      self._vectors(shard)

  def __getitem__(self, rows: slice) -> Float[np.ndarray, "n d"]:
    """Returns consecutive rows, without a copy if one file holds them."""
    start, stop, _ = rows.indices(self.shape[0])
    if start >= stop:
      return np.zeros((0, self.shape[1]), self.dtype)
    size, parts = self._rows_per_shard, []
    for shard in range(start // size, -(-stop // size)):
      first = shard * size
      parts.append(self._vectors(shard)[max(0, start - first) : stop - first])
    return parts[0] if len(parts) == 1 else np.concatenate(parts)

  def gather(self, rows: Int[np.ndarray, "*b"]) -> Float32[np.ndarray, "*b d"]:
    """Returns the vectors of any rows.

    Raises:
      SnapshotError: The snapshot has no vectors.
      IndexError: A row is not in 0 … N − 1; the null block has no vector.
    """
    rows = np.asarray(rows)
    if not self.paths:
      raise SnapshotError(
        "this snapshot has no vectors, as its index needs none: build one "
        "with another INDEX, or set INDEX_SCORES = True"
      )
    if rows.size and (rows.min() < 0 or rows.max() >= self.shape[0]):
      raise IndexError(
        f"rows {rows.min()} … {rows.max()} of a snapshot of {self.shape[0]} "
        "blocks; the null block is not stored"
      )
    gathered = np.empty((*rows.shape, self.shape[1]), np.float32)
    shards, places = np.divmod(rows, self._rows_per_shard)
    for shard in np.unique(shards).tolist():
      here = shards == shard
      gathered[here] = self._vectors(shard)[places[here]]
    return gathered

  def _vectors(self, shard: int) -> np.ndarray:
    if shard in self._maps:
      return self._maps[shard]
    (num_blocks, dim), dtype = self.shape, self.dtype
    first = shard * self._rows_per_shard
    shape = (min(self._rows_per_shard, num_blocks - first), dim)
    path = self.paths[shard]
    file = self._files.get([path]) / path
    mapped = np.load(file, mmap_mode="r", allow_pickle=False)
    if mapped.dtype != dtype and mapped.dtype.itemsize == dtype.itemsize:
      # The file format has no name for bfloat16, and stores plain bytes.
      mapped = mapped.view(dtype)
    if mapped.shape != shape or mapped.dtype != dtype:
      raise SnapshotError(
        f"{file} holds {mapped.dtype}{list(mapped.shape)} and its manifest "
        f"says {dtype}{list(shape)}"
      )
    self._maps[shard] = mapped
    return mapped


def check_finite(
  vectors: Float[np.ndarray, "n d"], rows: Int[np.ndarray, " n"]
) -> None:
  """Raises a SnapshotError if the vector of a row is not finite."""
  finite = np.isfinite(vectors).all(axis=1)
  if not finite.all():
    raise SnapshotError(
      f"the vector of block {int(rows[~finite][0])} is not finite; the "
      "checkpoint is broken"
    )


def index_blocks(
  corpus: Corpus, embeddings: Embeddings, **inputs: Any
) -> Blocks:
  """Returns the `Blocks` for a corpus and its vectors.

  `inputs` are other fields of `Blocks`.
  """
  return Blocks(
    num_blocks=corpus.num_blocks,
    vectors=embeddings if embeddings.paths else None,
    token_ids=lambda row: corpus.block(row).token_ids,
    vocab_size=corpus.vocab_size,
    **inputs,
  )


def save_query_tower(directory: Path, params: Params) -> None:
  """Writes the arrays by their path in the tree; the format holds no code."""
  flat = traverse_util.flatten_dict(params, sep="/")
  path = directory / QUERY_TOWER
  path.parent.mkdir()
  # `save_file` does not report a full disk as an `OSError`.
  path.write_bytes(
    safetensors.numpy.save(
      {name: np.asarray(array, order="C") for name, array in flat.items()}
    )
  )


def load_query_tower(directory: Path) -> Params:
  """Reads the tree as NumPy arrays, from a verified file."""
  flat = safetensors.numpy.load_file(directory / QUERY_TOWER)
  return traverse_util.unflatten_dict(flat, sep="/")
