"""A generation in progress: the shards that its workers have written so far.

    generations/00000500/<identity>/
      embeddings-00003-of-00048.npy    a shard
      embeddings-00003-of-00048.json   its record, written after it
      scann/ …                         what the first worker adds at the end

The shards stand where they are published from. The identity is a checksum of
everything that determines the vectors, so a worker that is restarted finds
shards that it can use, or none. Each shard has one worker, and each file one
writer: nothing is locked, renamed or linked.
"""

import contextlib
import dataclasses
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from etils import epath
from jaxtyping import Float, Int

from realm_jax.files.json_file import JsonValue, whole_text_file
from realm_jax.files.local_disk.scratch import ScratchDirectory
from realm_jax.files.object_store import listing
from realm_jax.files.object_store.remote import (
  is_remote,
  read_text,
  upload_files,
)
from realm_jax.generations.store import layout, transfer
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.embeddings import ShardLayout, write_shard
from realm_jax.generations.store.manifest import DamagedFileError, FileRecord


@dataclasses.dataclass(frozen=True)
class StoredVectors:
  """Vectors in a generation's directory, in row order.

  The sizes and checksums of the `files` may be unknown. All workers together
  spent the `seconds` on them.
  """

  shards: tuple[manifests.EmbeddingsShard, ...]
  files: tuple[FileRecord, ...]
  seconds: float


def identity_of(values: Mapping[str, JsonValue], shards: ShardLayout) -> str:
  """Returns the name of a draft's folder, from all that determines it."""
  checksum = manifests.json_checksum(
    {**values, "shards": dataclasses.asdict(shards)}
  )
  return checksum[:16]


class Draft:
  """The folder of one generation, of which workers write their shards.

  Args:
    generations_dir: Directory of the generations, local or on an object store.
    step: Checkpoint step of the generation.
    shards: Layout of its vectors.
    identity: What `identity_of` returns.
  """

  def __init__(
    self,
    generations_dir: epath.PathLike,
    step: int,
    shards: ShardLayout,
    identity: str,
  ):
    self.folder = layout.path_of(generations_dir, step) / identity
    self.layout = shards
    self._records: dict[str, StoredVectors] = {}

  def missing(self) -> list[int]:
    """Returns the shards that have not been written, by one listing."""
    names = set(listing.names_in(self.folder))
    return [
      shard
      for shard in range(len(self.layout))
      if self._record(shard, names) is None
    ]

  def add(
    self,
    shard: int,
    vectors: Float[np.ndarray, "n d"],
    steps: Int[np.ndarray, " n"],
    *,
    seconds: float,
  ) -> None:
    """Writes a shard, and then its record; `seconds` is the time spent on it.

    Raises:
      GenerationError: A vector is not finite.
      OSError: The disk is full.
    """
    written, files = write_shard(
      self.folder, self.layout, shard, vectors, steps
    )
    record = {
      "shard": dataclasses.asdict(written),
      "files": [dataclasses.asdict(file) for file in files],
      "seconds": round(seconds, 3),
    }
    with whole_text_file(self.folder / self._record_name(shard)) as file:
      file.write(manifests.to_checked_json(record))

  def stored(self) -> StoredVectors:
    """Returns the records of all shards.

    Raises:
      DamagedFileError: One is missing.
    """
    names = set(listing.names_in(self.folder))
    shards, files, seconds = [], [], 0.0
    for shard in range(len(self.layout)):
      record = self._record(shard, names)
      if record is None:
        raise DamagedFileError(
          f"{self.folder / self.layout.name(shard)} has gone"
        )
      shards += record.shards
      files += record.files
      seconds += record.seconds
    return StoredVectors(tuple(shards), tuple(files), seconds)

  @contextlib.contextmanager
  def local(self) -> Iterator[Path]:
    """Yields a local directory with the shards, to which to add other files.

    It is the folder itself, or a copy if the folder is on an object store; then
    the other files are copied there when the block ends.

    Raises:
      DamagedFileError: Shards differ from their records. They are dropped, so
        that their workers embed them again.
    """
    files = self.stored().files
    if not is_remote(self.folder):
      found = transfer.differing(Path(self.folder), files)
      self._drop(found)
      self._remove_unfinished({file.path for file in files})
      yield Path(self.folder)
      return
    with ScratchDirectory() as scratch:
      self._drop(transfer.download(self.folder, files, scratch.path))
      yield scratch.path
      added = self._added(scratch.path, files)
      upload_files(scratch.path, added, self.folder)

  def files(self, directory: Path) -> tuple[FileRecord, ...]:
    """Returns the records of all files in a `local` directory.

    Those of the shards are their workers' own.
    """
    files = self.stored().files
    added = self._added(directory, files)
    return (*files, *manifests.records_of(directory, added))

  def _added(self, directory: Path, files: Sequence[FileRecord]) -> list[str]:
    """Returns the files that are published beside the shards."""
    shards = {file.path for file in files}
    records = {self._record_name(i) for i in range(len(self.layout))}
    paths = (path for path in directory.rglob("*") if path.is_file())
    names = {str(path.relative_to(directory)) for path in paths}
    return sorted(names - shards - records)

  def _remove_unfinished(self, shards: Collection[str]) -> None:
    """Removes what an interrupted build has added to a local folder."""
    records = {self._record_name(i) for i in range(len(self.layout))}
    for name in listing.names_in(self.folder):
      path = Path(self.folder) / name
      if path.is_dir():
        shutil.rmtree(path)
      elif name not in {*shards, *records}:
        path.unlink()

  def _drop(self, damaged: Collection[str]) -> None:
    """Drops the shards of damaged files.

    Raises:
      DamagedFileError: There are any.
    """
    if not damaged:
      return
    for shard in range(len(self.layout)):
      if {self.layout.name(shard), self.layout.steps_name(shard)} & set(
        damaged
      ):
        name = self._record_name(shard)
        self._records.pop(name, None)
        (self.folder / name).unlink(missing_ok=True)
    raise DamagedFileError(
      f"{', '.join(sorted(damaged))} in {self.folder} changed after they were "
      "written: embedding their rows again"
    )

  def _record_name(self, shard: int) -> str:
    return str(Path(self.layout.name(shard)).with_suffix(".json"))

  def _record(self, shard: int, names: Collection[str]) -> StoredVectors | None:
    """Returns a shard's record; None where the shard is not complete."""
    name = self._record_name(shard)
    if name not in names or self.layout.name(shard) not in names:
      self._records.pop(name, None)
      return None
    if name not in self._records:
      try:
        text = read_text(self.folder / name)
        values = manifests.from_checked_json(text)
        self._records[name] = StoredVectors(
          (manifests.EmbeddingsShard(**values["shard"]),),
          tuple(FileRecord(**file) for file in values["files"]),
          values["seconds"],
        )
      except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return self._records[name]
