"""Shards of vectors that workers embed together and keep across restarts.

    generations/.shards-00000500-<identity>/
      embeddings-00003-of-00048.npy   a finished shard
      embeddings-00003-of-00048.json  its record, written last
      claim-00003                     locked by the worker that embeds the shard
      finish                          locked by the worker that publishes
      members                         share-locked by all workers

A lock ends with its process, so a worker that is killed loses only the shard
that it was embedding. The identity is a checksum of everything that determines
the vectors: a worker that joins finds shards that it can use, or an empty
directory. The directory is removed after publication.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
from absl import logging
from jaxtyping import Float, Int

from realm_jax.files.durable import sync
from realm_jax.files.json_file import JsonValue
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.embeddings import ShardLayout, write_shard
from realm_jax.generations.store.manifest import (
  DamagedFileError,
  EmbeddingsShard,
  FileRecord,
)

_WRITING = ".writing-"
_POLL_SECONDS = 0.2
_T = TypeVar("_T")


class WorkGoneError(Exception):
  """Another worker has published the generation and removed the directory."""


@dataclasses.dataclass(frozen=True)
class StoredVectors:
  """Vectors in a generation's directory.

  Attributes:
    shards: Files of the vectors, in row order.
    files: Sizes and checksums of the files, where they are known.
    seconds: Time that all workers together spent on them.
  """

  shards: tuple[EmbeddingsShard, ...]
  files: tuple[FileRecord, ...]
  seconds: float


class SharedWork:
  """The directory of one generation's shards; `join` returns one."""

  def __init__(self, directory: Path, shards: ShardLayout, identity: str):
    self.directory = directory
    self.layout = shards
    self._identity = identity
    # Each worker begins at another shard, so that they rarely want the same.
    self._first = secrets.randbelow(len(shards))

  def missing(self) -> list[int]:
    """Returns the shards that are not finished."""
    self._check_exists()
    return [i for i in range(len(self.layout)) if self._record(i) is None]

  @contextlib.contextmanager
  def claim_shard(self) -> Iterator[int | None]:
    """Locks a missing shard that no other worker embeds; None without one."""
    missing = self.missing()
    missing.sort(key=lambda i: (i - self._first) % len(self.layout))
    for shard in missing:
      with self._try_locked(f"claim-{shard:05d}") as locked:
        # The worker that had the lock may have finished the shard.
        if locked and self._record(shard) is None:
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
    aside = self.directory / f"{_WRITING}{shard:05d}"
    with self._detect_removal():
      # A worker that was killed may have left files of this shard.
      shutil.rmtree(aside, ignore_errors=True)
      aside.mkdir()
    try:
      written = write_shard(aside, self.layout, shard, vectors, steps)
      names = sorted(path.name for path in aside.iterdir())
      files = manifests.records_of(aside, names)
      record_name = self._record_path(shard).name
      (aside / record_name).write_text(
        manifests.to_checked_json(
          {
            "of": self._identity,
            "shard": dataclasses.asdict(written),
            "files": [dataclasses.asdict(file) for file in files],
            "seconds": round(seconds, 3),
          }
        )
      )
      with self._detect_removal():
        for name in (*names, record_name):
          sync(aside / name)
        for name in (*names, record_name):
          os.rename(aside / name, self.directory / name)
        sync(self.directory)
    finally:
      shutil.rmtree(aside, ignore_errors=True)

  def make_once(
    self,
    name: str,
    make: Callable[[Path], None],
    read: Callable[[Path], _T],
    *,
    check: Callable[[], None] = lambda: None,
  ) -> _T:
    """Returns the contents of a file that one worker makes for all.

    Args:
      name: Name of the file.
      make: Function that writes the file.
      read: Function that reads it. If that raises ValueError, it is made again.
      check: Function called while waiting; an exception stops the work.
    """
    path = self.directory / name
    while (contents := _try_read(path, read)) is None:
      check()
      with self._try_locked(f"claim-{name}") as locked:
        # The worker that had the lock may have made the file.
        if locked and _try_read(path, read) is None:
          aside = self.directory / f"{_WRITING}{name}"
          make(aside)
          sync(aside)
          os.rename(aside, path)
          sync(self.directory)
          return read(path)
      if not locked:
        time.sleep(_POLL_SECONDS)
    return contents

  @contextlib.contextmanager
  def claim_publication(self) -> Iterator[bool]:
    """Locks the publication; False if shards are missing or another has it."""
    with self._try_locked("finish") as locked:
      yield locked and not self.missing()

  def link_into(self, directory: Path) -> StoredVectors:
    """Links the shards into a directory, or copies where links are missing.

    Raises:
      DamagedFileError: A shard was removed or cut.
    """
    shards, files, seconds = [], [], 0.0
    for i in range(len(self.layout)):
      record = self._record(i)
      if record is None:
        self._check_exists()
        raise DamagedFileError(self.layout.name(i))
      with self._detect_removal():
        for file in record.files:
          _link(self.directory / file.path, directory / file.path)
      shards += record.shards
      files += record.files
      seconds += record.seconds
    return StoredVectors(tuple(shards), tuple(files), seconds)

  def discard(self, path: str) -> None:
    """Drops the shard of a damaged file, so that it is embedded again."""
    for i in range(len(self.layout)):
      record = self._record(i)
      if record and path in [file.path for file in record.files]:
        logging.warning("%s is damaged: embedding its rows again", path)
        self._record_path(i).unlink(missing_ok=True)

  def discard_damaged(self) -> bool:
    """Verifies all checksums; returns whether shards are missing now."""
    for i in range(len(self.layout)):
      if (record := self._record(i)) is None:
        continue
      with self._detect_removal():
        found = manifests.records_of(
          self.directory, [file.path for file in record.files]
        )
      for file in set(record.files).difference(found):
        self.discard(file.path)
    return bool(self.missing())

  def remove(self) -> None:
    """Removes the directory; other workers get a `WorkGoneError`."""
    _remove(self.directory)

  def _check_exists(self) -> None:
    if not (self.directory / "members").exists():
      raise WorkGoneError

  @contextlib.contextmanager
  def _detect_removal(self) -> Iterator[None]:
    """Turns a missing file into `WorkGoneError` if the directory is gone."""
    try:
      yield
    except FileNotFoundError as error:
      self._check_exists()
      raise error

  @contextlib.contextmanager
  def _try_locked(self, name: str) -> Iterator[bool]:
    """Tries to lock a file of the directory; yields whether it did."""
    self._check_exists()
    with self._detect_removal():
      lock = os.open(self.directory / name, os.O_RDWR | os.O_CREAT, 0o666)
    try:
      yield _try_lock(lock)
    finally:
      os.close(lock)

  def _record_path(self, shard: int) -> Path:
    return (self.directory / self.layout.name(shard)).with_suffix(".json")

  def _record(self, shard: int) -> StoredVectors | None:
    """Reads a shard's record; None where the shard is not complete."""
    try:
      values = manifests.from_checked_json(self._record_path(shard).read_text())
      record = StoredVectors(
        (EmbeddingsShard(**values["shard"]),),
        tuple(FileRecord(**file) for file in values["files"]),
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
  checksum = json_checksum({**identity, "shards": dataclasses.asdict(shards)})
  directory = parent / f"{layout.SHARED_SHARDS}{step:08d}-{checksum[:16]}"
  while True:
    directory.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
      members = directory / "members"
      lock = os.open(members, os.O_RDWR | os.O_CREAT, 0o666)
      # Waits for a process that is removing the directory.
      fcntl.flock(lock, fcntl.LOCK_SH)
      if _is_open_file(lock, members):
        break
      os.close(lock)
  try:
    yield SharedWork(directory, shards, checksum)
  finally:
    os.close(lock)


def json_checksum(values: Mapping[str, JsonValue]) -> str:
  """Returns the SHA-256 checksum of plain values."""
  text = json.dumps(values, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


def remove_obsolete(
  generations_dir: Path,
  is_needed: Callable[[int], bool],
  *,
  current: Path | None = None,
) -> None:
  """Removes shards that no restart would use and no worker is at.

  Args:
    generations_dir: Directory of the generations.
    is_needed: Function that returns whether a step may still be built.
    current: Directory that replaces the others of its step, if there is one.
  """
  for path in generations_dir.glob(f"{layout.SHARED_SHARDS}*"):
    step = int(path.name.removeprefix(layout.SHARED_SHARDS).partition("-")[0])
    is_replaced = (
      current is not None
      and path != current
      and current.name.startswith(f"{layout.SHARED_SHARDS}{step:08d}-")
    )
    if is_needed(step) and not is_replaced:
      continue
    with contextlib.suppress(FileNotFoundError):
      lock = os.open(path / "members", os.O_RDWR | os.O_CREAT, 0o666)
      try:
        if _try_lock(lock):
          logging.info("removing obsolete shards %s", path)
          _remove(path)
      finally:
        os.close(lock)


def _try_read(path: Path, read: Callable[[Path], _T]) -> _T | None:
  """Reads a file; None where there is none, or it is damaged."""
  try:
    return read(path)
  except FileNotFoundError:
    return None
  except ValueError as error:
    logging.warning("%s; it is made again", error)
    return None


def _try_lock(descriptor: int) -> bool:
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  return True


def _is_open_file(descriptor: int, path: Path) -> bool:
  """Returns whether a descriptor is of the file that is at a path now."""
  try:
    return os.path.samestat(os.fstat(descriptor), os.stat(path))
  except FileNotFoundError:
    return False


def _link(source: Path, target: Path) -> None:
  try:
    os.link(source, target)
  except FileNotFoundError:
    raise
  except OSError:
    # Not every file system has links.
    shutil.copyfile(source, target)


def _remove(directory: Path) -> None:
  """Hides a directory from all workers by a rename, and then deletes it."""
  name = f"{layout.TRASH}{directory.name}-{secrets.token_hex(4)}"
  try:
    os.rename(directory, directory.with_name(name))
  except FileNotFoundError:
    return
  shutil.rmtree(directory.with_name(name), ignore_errors=True)
