"""Shards of vectors that workers embed together and keep across restarts.

    generations/.shards-00000500-<identity>/
      embeddings-00003-of-00048.npy   a finished shard
      embeddings-00003-of-00048.json  its record, written last
      claim-00003                     locked by the worker that embeds the shard
      sample.npz                      vectors from which a refresh is planned
      finish                          locked by the worker that publishes
      members                         share-locked by all workers

A lock ends with its process, so a worker that is killed loses only the shard
that it was embedding. The identity is a checksum of everything that determines
the vectors: a worker that joins finds shards that it can use, or an empty
directory. The directory is removed after publication; a worker that comes late
then gets a `FileNotFoundError` from whatever it does with it.
"""

import contextlib
import dataclasses
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from absl import logging
from jaxtyping import Float, Int

from realm_jax.files.durable import sync
from realm_jax.files.json_file import JsonValue
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.embeddings import ShardLayout, write_shard
from realm_jax.generations.store.file_lock import locked
from realm_jax.generations.store.publisher import hide_and_delete

_POLL_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class StoredVectors:
  """Vectors in a generation's directory, in row order.

  The sizes and checksums of the `files` may be unknown. All workers together
  spent the `seconds` on them.
  """

  shards: tuple[manifests.EmbeddingsShard, ...]
  files: tuple[manifests.FileRecord, ...]
  seconds: float


class SharedWork:
  """The directory of one generation's shards, which `join` opens."""

  def __init__(self, directory: Path, shards: ShardLayout, identity: str):
    self.directory = directory
    self.layout = shards
    self._identity = identity
    # Each worker begins at another shard, so that they rarely want the same.
    self._first = secrets.randbelow(len(shards))

  def is_removed(self) -> bool:
    """Returns whether the directory is gone, as after publication."""
    return not (self.directory / "members").exists()

  def missing(self) -> list[int]:
    """Returns the shards that are not finished."""
    return [i for i in range(len(self.layout)) if self._record(i) is None]

  @contextlib.contextmanager
  def claim_shard(self) -> Iterator[int | None]:
    """Locks a missing shard that no other worker embeds; None without one."""
    missing = self.missing()
    missing.sort(key=lambda i: (i - self._first) % len(self.layout))
    for shard in missing:
      with self._try_locked(f"claim-{shard:05d}") as is_ours:
        # The worker that had the lock may have finished the shard.
        if is_ours and self._record(shard) is None:
          yield shard
          return
    yield None

  def add(
    self,
    shard: int,
    vectors: Float[np.ndarray, "n d"],
    steps: Int[np.ndarray, " n"],
    *,
    seconds: float,
  ) -> None:
    """Writes a claimed shard durably; `seconds` is the time spent on it.

    Raises:
      GenerationError: A vector is not finite.
      OSError: The disk is full.
    """
    self._drop(shard)
    try:
      written = write_shard(self.directory, self.layout, shard, vectors, steps)
      names = [name for name in (written.path, written.steps_path) if name]
      for name in names:
        sync(self.directory / name)
      record = {
        "of": self._identity,
        "shard": dataclasses.asdict(written),
        "files": [
          dataclasses.asdict(file)
          for file in manifests.records_of(self.directory, names)
        ],
        "seconds": round(seconds, 3),
      }
      path = self._record_path(shard)
      path.write_text(manifests.to_checked_json(record))
      sync(path)
      sync(self.directory)
    except BaseException:
      self._drop(shard)
      raise

  def make_once(
    self,
    name: str,
    make: Callable[[], np.ndarray],
    *,
    check: Callable[[], None] = lambda: None,
  ) -> np.ndarray:
    """Returns an array that one worker makes for all and keeps in a file.

    The function `check` is called while waiting; an exception stops the work.
    """
    path = self.directory / f"{name}.npz"
    while True:
      check()
      with self._try_locked(f"claim-{name}") as is_ours:
        if is_ours:
          if (array := _read_array(path)) is None:
            array = make()
            with path.open("wb") as file:
              np.savez(file, array=array)
            sync(path)
          return array
      time.sleep(_POLL_SECONDS)

  @contextlib.contextmanager
  def claim_publication(self) -> Iterator[bool]:
    """Locks the publication; False if shards are missing or another has it."""
    with self._try_locked("finish") as is_ours:
      yield is_ours and not self.missing()

  def link_into(self, directory: Path) -> StoredVectors:
    """Links the shards into a directory, or copies where links are missing.

    Raises:
      DamagedFileError: A shard was removed or cut.
    """
    shards, files, seconds = [], [], 0.0
    for i in range(len(self.layout)):
      record = self._record(i)
      if record is None:
        raise manifests.DamagedFileError(f"{self.layout.name(i)} is incomplete")
      for file in record.files:
        _link(self.directory / file.path, directory / file.path)
      shards += record.shards
      files += record.files
      seconds += record.seconds
    return StoredVectors(tuple(shards), tuple(files), seconds)

  def discard_damaged(self) -> bool:
    """Drops shards that do not match their checksums, to be embedded again.

    Returns whether shards are missing now.
    """
    for i in range(len(self.layout)):
      if record := self._record(i):
        paths = [file.path for file in record.files]
        if manifests.records_of(self.directory, paths) != record.files:
          logging.warning("%s is damaged: embedding its rows again", paths[0])
          self._drop(i)
    return bool(self.missing())

  def remove(self) -> None:
    """Removes the directory, after publication."""
    hide_and_delete(self.directory)

  def remove_obsolete(self, is_needed: Callable[[int], bool]) -> None:
    """Removes others' shards that no restart would use and no worker is at.

    These are all others of this step, and those of steps that may no longer be
    built, which `is_needed` tells.
    """
    for path in self.directory.parent.glob(f"{layout.SHARED_SHARDS}*"):
      step = _step_of(path)
      if path == self.directory:
        continue
      if step != _step_of(self.directory) and is_needed(step):
        continue
      with (
        contextlib.suppress(FileNotFoundError),
        locked(path / "members", wait=False) as is_ours,
      ):
        if is_ours:
          logging.info("removing obsolete shards %s", path)
          hide_and_delete(path)

  def _try_locked(self, name: str) -> contextlib.AbstractContextManager[bool]:
    return locked(self.directory / name, wait=False)

  def _drop(self, shard: int) -> None:
    """Removes the files of a shard, which may be links to published ones."""
    self._record_path(shard).unlink(missing_ok=True)
    for name in (self.layout.name(shard), self.layout.steps_name(shard)):
      (self.directory / name).unlink(missing_ok=True)

  def _record_path(self, shard: int) -> Path:
    return (self.directory / self.layout.name(shard)).with_suffix(".json")

  def _record(self, shard: int) -> StoredVectors | None:
    """Reads a shard's record; None where the shard is not complete."""
    try:
      values = manifests.from_checked_json(self._record_path(shard).read_text())
      record = StoredVectors(
        (manifests.EmbeddingsShard(**values["shard"]),),
        tuple(manifests.FileRecord(**file) for file in values["files"]),
        values["seconds"],
      )
      is_complete = values["of"] == self._identity and all(
        (self.directory / file.path).stat().st_size == file.size
        for file in record.files
      )
    except (FileNotFoundError, ValueError, KeyError, TypeError):
      return None
    return record if is_complete else None


@contextlib.contextmanager
def join(
  parent: Path,
  *,
  step: int,
  shards: ShardLayout,
  identity: Mapping[str, JsonValue],
) -> Iterator[SharedWork]:
  """Joins the work on a generation of a step, or begins it below `parent`.

  The `identity` is everything that determines the vectors, as plain values.
  """
  checksum = manifests.json_checksum(
    {**identity, "shards": dataclasses.asdict(shards)}
  )
  directory = parent / f"{layout.SHARED_SHARDS}{step:08d}-{checksum[:16]}"
  members = directory / "members"
  while True:
    directory.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
      try:
        file = stack.enter_context(members.open("a"))
        # Waits for a process that is removing the directory.
        fcntl.flock(file, fcntl.LOCK_SH)
        is_there = os.path.samestat(os.fstat(file.fileno()), members.stat())
      except FileNotFoundError:
        continue
      if is_there:
        yield SharedWork(directory, shards, checksum)
        return


def _step_of(directory: Path) -> int:
  name = directory.name.removeprefix(layout.SHARED_SHARDS)
  return int(name.partition("-")[0])


def _read_array(path: Path) -> np.ndarray | None:
  """Reads an array; None where there is none, or it is damaged."""
  if not path.exists():
    return None
  try:
    with path.open("rb") as file, np.load(file) as arrays:
      return arrays["array"]
  except Exception as error:
    # A damaged archive raises many types of errors.
    logging.warning("%s is damaged (%r); it is made again", path, error)
    return None


def _link(source: Path, target: Path) -> None:
  try:
    os.link(source, target)
  except FileNotFoundError:
    raise
  except OSError:
    # Not every file system has links.
    shutil.copyfile(source, target)
