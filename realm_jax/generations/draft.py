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
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from etils import epath
from jaxtyping import Float, Int

from realm_jax.generations.manifest import (
  EmbeddingsShard,
  from_checked_json,
  to_checked_json,
)
from realm_jax.generations.vectors import ShardLayout, write_shard
from realm_jax.storage.atomic import atomic_text_file
from realm_jax.storage.paths import (
  copy_object,
  list_names,
  read_text,
  upload_files,
)
from realm_jax.storage.staging import (
  DamagedFileError,
  FileRecord,
  StagedFiles,
  record_files,
)


class _Record(NamedTuple):
  """A shard that is complete: its files, and the time that it took."""

  shard: EmbeddingsShard
  files: tuple[FileRecord, ...]
  seconds: float


class Draft:
  """The folder of one generation, in which processes write its shards."""

  def __init__(self, folder: epath.Path, layout: ShardLayout):
    self.folder = folder
    self.layout = layout
    self._records: dict[int, _Record] = {}

  def missing(self) -> list[int]:
    """Returns the shards that have not been written, by one listing."""
    names = set(list_names(self.folder))
    shards = range(len(self.layout))
    return [shard for shard in shards if self._record(shard, names) is None]

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
    with atomic_text_file(self.folder / self._record_name(shard)) as file:
      file.write(to_checked_json(record))

  def adopt(self) -> None:
    """Copies shards of earlier builders, which have folders of their own."""
    identity, separator, _ = self.folder.name.partition("-")
    for name in list_names(self.folder.parent) if separator else ():
      if not name.startswith(f"{identity}-") or name == self.folder.name:
        continue
      earlier = Draft(self.folder.parent / name, self.layout)
      for shard in {*self.missing()} - {*earlier.missing()}:
        paths = [file.path for file in earlier._records[shard].files]
        for path in (*paths, self._record_name(shard)):
          copy_object(earlier.folder / path, self.folder / path)

  def records(self) -> list[_Record]:
    """Returns the records of all shards.

    Raises:
      DamagedFileError: One is missing.
    """
    if missing := self.missing():
      name = self.layout.name(missing[0])
      raise DamagedFileError(f"{self.folder / name} is missing")
    return [self._records[shard] for shard in range(len(self.layout))]

  def shards(self) -> tuple[EmbeddingsShard, ...]:
    """Returns the descriptions of all shards; raises as `records` does."""
    return tuple(record.shard for record in self.records())

  def seconds(self) -> float:
    """Returns the time that all processes together spent on the shards."""
    return sum(record.seconds for record in self.records())

  @contextlib.contextmanager
  def local(self) -> Iterator[Path]:
    """Yields a local directory with the shards, to which to add other files.

    It is the folder itself, or a copy if the folder is on an object store; then
    the other files are copied there when the block ends.

    Raises:
      DamagedFileError: Shards differ from their records. They are dropped, so
        that they are embedded again.
    """
    records = self.records()
    by_path = {f.path: i for i, r in enumerate(records) for f in r.files}
    files = StagedFiles(
      self.folder, [file for record in records for file in record.files]
    )
    if problems := files.problems(by_path):
      for shard in {by_path[path] for path in problems}:
        self._records.pop(shard)
        (self.folder / self._record_name(shard)).unlink(missing_ok=True)
      raise DamagedFileError(
        f"{', '.join(sorted(problems))} in {self.folder} changed after they "
        "were written: embedding their rows again"
      )
    if not files.is_copied:
      self._remove_unfinished()
    yield files.root
    if files.is_copied:
      upload_files(files.root, self._added(files.root), self.folder)

  def files(self, directory: Path) -> tuple[FileRecord, ...]:
    """Returns the records of all files in a `local` directory."""
    shards = [file for record in self.records() for file in record.files]
    return (*shards, *record_files(directory, self._added(directory)))

  def _added(self, directory: Path) -> list[str]:
    """Returns the files that are published beside the shards."""
    paths = (path for path in directory.rglob("*") if path.is_file())
    names = {str(path.relative_to(directory)) for path in paths}
    return sorted(names - self._own_names())

  def _own_names(self) -> set[str]:
    shards = {file.path for r in self._records.values() for file in r.files}
    return shards | {self._record_name(i) for i in range(len(self.layout))}

  def _remove_unfinished(self) -> None:
    """Removes what an interrupted build has added to a local folder."""
    own = self._own_names()
    for name in list_names(self.folder):
      path = Path(self.folder) / name
      if path.is_dir():
        shutil.rmtree(path)
      elif name not in own:
        path.unlink()

  def _record_name(self, shard: int) -> str:
    return str(Path(self.layout.name(shard)).with_suffix(".json"))

  def _record(self, shard: int, names: Collection[str]) -> _Record | None:
    """Returns a shard's record; None where the shard is not complete."""
    name = self._record_name(shard)
    if name not in names or self.layout.name(shard) not in names:
      self._records.pop(shard, None)
      return None
    if shard not in self._records:
      try:
        values = from_checked_json(read_text(self.folder / name))
        self._records[shard] = _Record(
          EmbeddingsShard(**values["shard"]),
          tuple(FileRecord(**file) for file in values["files"]),
          values["seconds"],
        )
      except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return self._records[shard]
