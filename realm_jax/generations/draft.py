"""A generation in progress: the shards that builders have written so far.

    generations/00000500/<identity>/
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

import numpy as np
from etils import epath
from jaxtyping import Float, Int

from realm_jax.generations.manifest import (
  EmbeddingsShard,
  from_checked_json,
  to_checked_json,
)
from realm_jax.generations.vectors import check_finite
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
  sha256_of,
)

# A file's vectors are in memory while they are embedded.
_MAX_SHARD_BYTES = 1 << 28


@dataclasses.dataclass(frozen=True)
class ShardLayout:
  """The division of vectors into files of consecutive rows.

  Each file but the last has `rows_per_shard` rows. The `dtype` is that of the
  stored vectors, `float32` or `bfloat16`.
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
    return max(1, -(-self.num_blocks // self.rows_per_shard))

  def rows(self, shard: int) -> Int[np.ndarray, " n"]:
    """Returns the rows of a file."""
    start = shard * self.rows_per_shard
    return np.arange(start, min(start + self.rows_per_shard, self.num_blocks))

  def name(self, shard: int) -> str:
    """Returns the name of a file of vectors."""
    return f"embeddings-{shard:05d}-of-{len(self):05d}.npy"


@dataclasses.dataclass(frozen=True)
class ShardRecord:
  """A complete shard: its files, and the seconds that were spent on it."""

  shard: EmbeddingsShard
  files: tuple[FileRecord, ...]
  seconds: float


class Draft:
  """The folder of one generation, in which processes write its shards."""

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
          records[shard] = ShardRecord(
            EmbeddingsShard(**values["shard"]),
            tuple(FileRecord(**file) for file in values["files"]),
            values["seconds"],
          )
    return records

  def add(
    self,
    shard: int,
    vectors: Float[np.ndarray, "n d"],
    steps: Int[np.ndarray, " n"],
    *,
    seconds: float,
  ) -> None:
    """Writes the vectors of a shard, and then its record.

    The `steps` are those of the checkpoints that its rows were embedded with,
    and `seconds` the time that was spent on the vectors.

    Raises:
      GenerationError: A vector is not finite.
      OSError: The disk is full.
    """
    check_finite(vectors, self.layout.rows(shard))
    name, steps_name = self.layout.name(shard), ""
    arrays = {name: vectors.astype(self.layout.dtype)}
    oldest, newest = int(steps.min()), int(steps.max())
    if oldest != newest:
      steps_name = name.replace("embeddings", "steps")
      arrays[steps_name] = steps.astype(np.int32)
    files = []
    for file_name, array in arrays.items():
      with atomic_file(self.folder / file_name) as path:
        save_array(path, array)
        size = path.stat().st_size
        files.append(FileRecord(file_name, size, sha256_of(path)))
    written = EmbeddingsShard(name, len(vectors), oldest, newest, steps_name)
    record = ShardRecord(written, tuple(files), round(seconds, 3))
    with atomic_text_file(self.folder / self._record_name(shard)) as text:
      text.write(to_checked_json(dataclasses.asdict(record)))

  def adopt(self) -> None:
    """Copies shards of earlier builders, which have folders of their own."""
    identity, separator, _ = self.folder.name.partition("-")
    done = self.records()
    for name in list_names(self.folder.parent) if separator else ():
      if not name.startswith(f"{identity}-") or name == self.folder.name:
        continue
      earlier = Draft(self.folder.parent / name, self.layout)
      for shard, record in earlier.records().items():
        if shard not in done:
          done[shard] = record
          paths = [file.path for file in record.files]
          for path in (*paths, self._record_name(shard)):
            copy_object(earlier.folder / path, self.folder / path)

  def verified(self) -> tuple[StagedFiles, list[ShardRecord]]:
    """Returns the files of all shards, local or copied, and their records.

    Other folders there, which an interrupted build has left, are removed.

    Raises:
      DamagedFileError: A shard is missing, or differs from its record. It is
        dropped, so that it is embedded again.
    """
    records = self.records()
    bad = {self.layout.name(i) for i in range(len(self.layout))}
    bad -= {record.shard.path for record in records.values()}
    by_path = {f.path: i for i, r in records.items() for f in r.files}
    staged = StagedFiles(
      self.folder, [file for r in records.values() for file in r.files]
    )
    for path in staged.problems(by_path):
      bad.add(path)
      name = self._record_name(by_path[path])
      (self.folder / name).unlink(missing_ok=True)
    if bad:
      raise DamagedFileError(
        f"{', '.join(sorted(bad))} in {self.folder} changed after they were "
        "written: embedding their rows again"
      )
    for path in staged.root.iterdir():
      if path.is_dir():
        shutil.rmtree(path)
    return staged, list(records.values())

  def record_others(self, root: Path) -> tuple[FileRecord, ...]:
    """Returns the records of all files in folders below a local directory.

    They are copied to the draft, if that is on an object store.
    """
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
