"""The vectors of a snapshot: drafts of them, memory maps, the query tower.

    snapshots/00000500/<identity>/
      embeddings-00003-of-00048.npy    a shard
      embeddings-00003-of-00048.json   its record, written after it
      scann/ …                         what process 0 adds at the end

The shards stand where they are published from. The identity is a checksum of
everything that determines the vectors, so that a builder which starts again
finds shards that it can use, or none. Each shard is embedded by one process,
and each file has one writer: nothing is locked, renamed or linked.
"""

import contextlib
import dataclasses
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
from realm_jax.snapshots.manifest import (
  EmbeddingsShard,
  Manifest,
  SnapshotError,
  from_checked_json,
  to_checked_json,
)
from realm_jax.storage.atomic import atomic_file, atomic_text_file
from realm_jax.storage.local_disk import save_array
from realm_jax.storage.paths import (
  copy_object,
  list_names,
  read_text,
  upload_directory,
)
from realm_jax.storage.staging import (
  DamagedFileError,
  FileRecord,
  StagedFiles,
  record_files,
)

# A file's vectors are in memory while they are embedded.
_MAX_SHARD_BYTES = 1 << 28
# File of the parameters that embed queries for the vectors.
QUERY_TOWER = "query_tower/parameters.safetensors"


@dataclasses.dataclass(frozen=True)
class ShardLayout:
  """The division of vectors into files of `rows_per_shard` consecutive rows.

  The `dtype` is that of the stored vectors, `float32` or `bfloat16`.
  """

  num_blocks: int
  dim: int
  dtype: str
  rows_per_shard: int

  @classmethod
  def of(
    cls, num_blocks: int, dim: int, *, dtype: str, max_rows: int
  ) -> "ShardLayout":
    """Divides into files of about the same size, of at most `max_rows`."""
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

  def name(self, shard: int) -> str:
    """Returns the name of a file of vectors."""
    return f"embeddings-{shard:05d}-of-{len(self):05d}.npy"

  @property
  def embeddings(self) -> tuple[EmbeddingsShard, ...]:
    """All files, as a manifest describes them."""
    return tuple(
      EmbeddingsShard(self.name(shard), len(self.rows(shard)))
      for shard in range(len(self))
    )


@dataclasses.dataclass(frozen=True)
class ShardRecord:
  """A complete shard: its file, and the seconds that were spent on it."""

  file: FileRecord
  seconds: float


class Draft:
  """The folder of one snapshot, in which processes write its shards."""

  def __init__(self, folder: epath.Path, layout: ShardLayout):
    self.folder = folder
    self.layout = layout

  def records(self) -> dict[int, ShardRecord]:
    """Returns the records of the shards that are complete, by number."""
    names, records = set(list_names(self.folder)), {}
    for shard in range(len(self.layout)):
      record = self._record_name(shard)
      if {record, self.layout.name(shard)} <= names:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
          values = from_checked_json(read_text(self.folder / record))
          file = FileRecord(**values["file"])
          records[shard] = ShardRecord(file, values["seconds"])
    return records

  def add(
    self,
    shard: int,
    vectors: Float[np.ndarray, "n d"],
    *,
    seconds: float,
  ) -> None:
    """Writes the vectors of a shard, embedded in `seconds`, and its record.

    Raises:
      SnapshotError: A vector is not finite.
      OSError: The disk is full.
    """
    check_finite(vectors, self.layout.rows(shard))
    name = self.layout.name(shard)
    with atomic_file(self.folder / name) as path:
      save_array(path, vectors.astype(self.layout.dtype))
      file = FileRecord.of(path, name)
    record = ShardRecord(file, round(seconds, 3))
    with atomic_text_file(self.folder / self._record_name(shard)) as text:
      text.write(to_checked_json(dataclasses.asdict(record)))

  def adopt(self) -> None:
    """Copies shards of earlier builders, which have folders of their own."""
    identity, separator, _ = self.folder.name.partition("-")
    done = set(self.records())
    for name in list_names(self.folder.parent) if separator else ():
      if not name.startswith(f"{identity}-"):
        continue
      earlier = Draft(self.folder.parent / name, self.layout)
      for shard, record in earlier.records().items():
        if shard not in done:
          done.add(shard)
          for path in (record.file.path, self._record_name(shard)):
            copy_object(earlier.folder / path, self.folder / path)

  def verified(
    self, *, are_read: bool = True
  ) -> tuple[StagedFiles, list[ShardRecord]]:
    """Returns the files of all shards, local or copied, and their records.

    Unless they `are_read`, files in a bucket are not copied, and only their
    sizes are compared. Other folders there, which an interrupted build has
    left, are removed.

    Raises:
      DamagedFileError: A shard is missing, or differs from its record. It is
        dropped, so that it is embedded again.
    """
    records = self.records()
    files = [record.file for record in records.values()]
    staged = StagedFiles(self.folder, files)
    paths = [file.path for file in files]
    bad = set(staged.problems(paths, copies=are_read))
    for shard, record in records.items():
      if record.file.path in bad:
        (self.folder / self._record_name(shard)).unlink(missing_ok=True)
    for shard in set(range(len(self.layout))) - set(records):
      bad.add(self.layout.name(shard))
    if bad:
      raise DamagedFileError(
        f"{', '.join(sorted(bad))} in {self.folder} changed after they were "
        "written: embedding their rows again"
      )
    # An index without vectors has written nothing yet.
    staged.root.mkdir(parents=True, exist_ok=True)
    for path in staged.root.iterdir():
      if path.is_dir():
        shutil.rmtree(path)
    return staged, list(records.values())

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

  def _record_name(self, shard: int) -> str:
    return str(Path(self.layout.name(shard)).with_suffix(".json"))


class Embeddings:
  """The vectors of a snapshot, memory-mapped file by file on first access.

  They are divided as a manifest says, or the layout of a draft. Every access
  verifies, or copies, the files that it needs, and raises a SnapshotError if
  one differs from the manifest.
  """

  def __init__(self, files: StagedFiles, layout: Manifest | ShardLayout):
    shards = layout.embeddings
    *starts, num_blocks = np.cumsum([0, *(shard.rows for shard in shards)])
    self.shape = (int(num_blocks), layout.dim)
    self.dtype = np.dtype(layout.dtype)
    self._files, self._shards = files, shards
    self._starts = np.array(starts)
    self._maps: dict[str, np.ndarray] = {}

  def paths(self) -> list[str]:
    """Returns the paths of all files."""
    return [shard.path for shard in self._shards]

  def map_all(self) -> None:
    """Maps all files now. What is mapped stays, even if its file is removed."""
    for shard in self._shards:
      self._vectors(shard)

  def __getitem__(self, rows: slice) -> Float[np.ndarray, "n d"]:
    """Returns consecutive rows, without a copy if one file holds them."""
    start, stop, stride = rows.indices(self.shape[0])
    if stride != 1:
      raise IndexError(f"stride {stride}; want consecutive rows")
    parts = [
      self._vectors(shard)[max(0, start - first) : max(0, stop - first)]
      for first, shard in zip(self._starts, self._shards, strict=True)
      if start < first + shard.rows and stop > first
    ]
    if not parts:
      return np.zeros((0, self.shape[1]), self.dtype)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)

  def gather(self, rows: Int[np.ndarray, "*b"]) -> Float32[np.ndarray, "*b d"]:
    """Returns the vectors of any rows.

    Raises:
      SnapshotError: The snapshot has no vectors.
      IndexError: A row is not in 0 … N − 1; the null block has no vector.
    """
    rows = np.asarray(rows)
    if not self._shards:
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
    places = np.searchsorted(self._starts, rows, side="right") - 1
    for place in np.unique(places).tolist():
      here = places == place
      vectors = self._vectors(self._shards[place])
      gathered[here] = vectors[rows[here] - self._starts[place]]
    return gathered

  def _vectors(self, shard: EmbeddingsShard) -> np.ndarray:
    if (path := shard.path) in self._maps:
      return self._maps[path]
    shape, dtype = (shard.rows, self.shape[1]), self.dtype
    file = self._files.get([path]) / path
    mapped = np.load(file, mmap_mode="r", allow_pickle=False)
    if mapped.dtype != dtype and mapped.dtype.itemsize == dtype.itemsize:
      # The file format has no name for bfloat16 and returns plain bytes.
      mapped = mapped.view(dtype)
    if mapped.shape != shape or mapped.dtype != dtype:
      raise SnapshotError(
        f"{file} holds {mapped.dtype}{list(mapped.shape)} and its manifest "
        f"says {dtype}{list(shape)}"
      )
    self._maps[path] = mapped
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
  """Returns what an index is built over: a corpus, its vectors, and `inputs`.

  Those are other fields of `Blocks`.
  """
  return Blocks(
    num_blocks=corpus.num_blocks,
    vectors=embeddings if embeddings.paths() else None,
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
  """Reads the tree as numpy arrays, from a file that was verified."""
  flat = safetensors.numpy.load_file(directory / QUERY_TOWER)
  return traverse_util.unflatten_dict(flat, sep="/")
