"""Shards of vectors that several builders embed together, and whoever restarts.

    generations/.shards-00000500-<identity>/
      embeddings-00003-of-00048.npy   a shard that is done, with
      embeddings-00003-of-00048.json  its record, written last
      claim-00003                     locked by the process that is at it
      finish                          locked by the process that publishes
      members                         share-locked by all that take part

A lock dies with its process, so that a killed one loses the shard that it was
at. The identity is a checksum of all that the vectors follow from: whoever
joins finds what is of use to it, or an empty folder. The folder goes with the
publication.
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
from typing import Any, TypeVar

import numpy as np
from absl import logging
from jaxtyping import Float, Int

from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.embeddings import ShardLayout, write_shard
from realm_jax.generations.store.manifest import (
  DamagedFileError,
  EmbeddingsShard,
  FileRecord,
)

_WRITING = ".writing-"
_T = TypeVar("_T")
_POLL_SECONDS = 0.2


class WorkGoneError(Exception):
  """Another process has published and removed the folder."""


@dataclasses.dataclass(frozen=True)
class StoredVectors:
  """Vectors in a generation's directory.

  Attributes:
    shards: in row order.
    files: their sizes and checksums, where they are known.
    seconds: that all processes together spent on them.
  """

  shards: tuple[EmbeddingsShard, ...]
  files: tuple[FileRecord, ...]
  seconds: float


class SharedWork:
  """The folder of one generation's shards; get one with `joined`.

  Args:
    directory: the folder.
    shards: what it holds when all is done.
    identity: the checksum of what they follow from.
  """

  def __init__(self, directory: Path, shards: ShardLayout, identity: str):
    self.directory = directory
    self.layout = shards
    self._identity = identity
    # Processes begin at different shards, and seldom meet.
    self._first = secrets.randbelow(len(shards))

  def missing(self) -> list[int]:
    """The shards that are not done."""
    self._require()
    return [i for i in range(len(self.layout)) if self._record(i) is None]

  @contextlib.contextmanager
  def claimed(self) -> Iterator[int | None]:
    """A shard that nobody else is at; None where there is none."""
    missing = self.missing()
    missing.sort(key=lambda i: (i - self._first) % len(self.layout))
    for shard in missing:
      with self._locked(f"claim-{shard:05d}") as mine:
        # Whoever had it may have finished it since.
        if mine and self._record(shard) is None:
          yield shard
          return
    yield None

  def put(
    self,
    shard: int,
    vectors: Float[np.ndarray, "n d"],
    steps: Int[np.ndarray, " n"],
    *,
    seconds: float,
  ) -> None:
    """Adds a shard that is claimed, durably.

    Args:
      shard: which.
      vectors: of its rows.
      steps: the checkpoints that these were embedded with.
      seconds: spent on them.

    Raises:
      GenerationError: a vector is not finite.
      OSError: the disk is full.
    """
    aside = self.directory / f"{_WRITING}{shard:05d}"
    with self._gone_is_said():
      # Of a process that was killed, at this shard.
      shutil.rmtree(aside, ignore_errors=True)
      aside.mkdir()
    try:
      written = write_shard(aside, self.layout, shard, vectors, steps)
      names = [path.name for path in aside.iterdir()]
      files = manifests.records_of(aside, sorted(names))
      record = {
        "of": self._identity,
        "shard": dataclasses.asdict(written),
        "files": [dataclasses.asdict(file) for file in files],
        "seconds": round(seconds, 3),
      }
      name = self._record_path(shard).name
      (aside / name).write_text(manifests.sealed(record))
      with self._gone_is_said():
        for file in (*names, name):
          sync(aside / file)
        for file in (*names, name):
          os.rename(aside / file, self.directory / file)
        sync(self.directory)
    finally:
      shutil.rmtree(aside, ignore_errors=True)

  def once(
    self,
    name: str,
    make: Callable[[Path], None],
    read: Callable[[Path], _T],
    *,
    check: Callable[[], None] = lambda: None,
  ) -> _T:
    """What is in a file that one process makes while the others wait.

    Args:
      name: of the file.
      make: writes it to the path that it is given.
      read: reads it; where that raises ValueError it is made again.
      check: called while waiting; what it raises ends it.
    """
    path = self.directory / name
    while (found := _whole(path, read)) is None:
      check()
      with self._locked(f"claim-{name}") as mine:
        # Whoever had it may have made it since.
        if mine and _whole(path, read) is None:
          aside = self.directory / f"{_WRITING}{name}"
          make(aside)
          sync(aside)
          os.rename(aside, path)
          sync(self.directory)
          return read(path)
      if not mine:
        time.sleep(_POLL_SECONDS)
    return found

  @contextlib.contextmanager
  def finishing(self) -> Iterator[bool]:
    """Whether all shards are there, and publishing them falls to us."""
    with self._locked("finish") as mine:
      yield mine and not self.missing()

  def place(self, directory: Path) -> StoredVectors:
    """Puts the shards into a directory, without a copy where links exist.

    Raises:
      DamagedFileError: a shard is not there any more, or was cut.
    """
    shards, files, seconds = [], [], 0.0
    for i in range(len(self.layout)):
      record = self._record(i)
      if record is None:
        self._require()
        raise DamagedFileError(self.layout.name(i))
      shards.append(EmbeddingsShard(**record["shard"]))
      here = [FileRecord(**file) for file in record["files"]]
      with self._gone_is_said():
        for file in here:
          _link(self.directory / file.path, directory / file.path)
      files += here
      seconds += record["seconds"]
    return StoredVectors(tuple(shards), tuple(files), seconds)

  def discard(self, path: str) -> None:
    """Drops the shard of a file that is damaged; it will be embedded again."""
    for i in range(len(self.layout)):
      record = self._record(i)
      if record and path in [file["path"] for file in record["files"]]:
        logging.warning("%s is damaged: embedding its rows again", path)
        self._record_path(i).unlink(missing_ok=True)

  def discard_damaged(self) -> bool:
    """Holds every shard against its checksums, and drops those that differ.

    Returns:
      Whether there is any to embed again.
    """
    for i in range(len(self.layout)):
      record = self._record(i)
      wanted = (
        [FileRecord(**file) for file in record["files"]] if record else []
      )
      with self._gone_is_said():
        found = manifests.records_of(self.directory, [f.path for f in wanted])
      for file in set(wanted).difference(found):
        self.discard(file.path)
    return bool(self.missing())

  def remove(self) -> None:
    """Ends the work, for everybody."""
    _remove(self.directory)

  def _require(self) -> None:
    if not (self.directory / "members").exists():
      raise WorkGoneError

  @contextlib.contextmanager
  def _gone_is_said(self) -> Iterator[None]:
    try:
      yield
    except FileNotFoundError as error:
      self._require()
      raise error

  @contextlib.contextmanager
  def _locked(self, name: str) -> Iterator[bool]:
    """Whether we got the lock; it dies with the process."""
    self._require()
    with self._gone_is_said():
      lock = os.open(self.directory / name, os.O_RDWR | os.O_CREAT, 0o666)
    try:
      yield _try_lock(lock, fcntl.LOCK_EX)
    finally:
      os.close(lock)

  def _record_path(self, shard: int) -> Path:
    return (self.directory / self.layout.name(shard)).with_suffix(".json")

  def _record(self, shard: int) -> dict[str, Any] | None:
    """A shard's record; None where the shard is not whole."""
    try:
      record = manifests.unsealed(self._record_path(shard).read_text())
      whole = record["of"] == self._identity and all(
        (self.directory / file["path"]).stat().st_size == file["size"]
        for file in record["files"]
      )
    except (FileNotFoundError, ValueError, KeyError, TypeError):
      return None
    return record if whole else None


@contextlib.contextmanager
def joined(
  parent: Path,
  *,
  step: int,
  shards: ShardLayout,
  identity: Mapping[str, Any],
) -> Iterator[SharedWork]:
  """Takes part in the work on a generation.

  Args:
    parent: where the folder is, or will be.
    step: the checkpoint's.
    shards: how the vectors are cut into files.
    identity: all that the vectors follow from, as plain values.
  """
  of = identity_digest({**identity, "shards": dataclasses.asdict(shards)})
  directory = parent / f"{layout.SHARING}{step:08d}-{of[:16]}"
  while True:
    directory.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
      members = directory / "members"
      lock = os.open(members, os.O_RDWR | os.O_CREAT, 0o666)
      # Whoever removes the folder has it for itself, and we wait.
      fcntl.flock(lock, fcntl.LOCK_SH)
      if _is_at(lock, members):
        break
      os.close(lock)
  try:
    yield SharedWork(directory, shards, of)
  finally:
    os.close(lock)


def identity_digest(identity: Mapping[str, Any]) -> str:
  """A checksum of plain values."""
  text = json.dumps(identity, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


def remove_useless(
  generations_dir: Path,
  is_of_use: Callable[[int], bool],
  *,
  current: Path | None = None,
) -> None:
  """Removes shards that no restart would go on with, and nobody is at.

  Args:
    generations_dir: where generations lie.
    is_of_use: whether a generation of a step may still be made.
    current: the one folder that is of use for its step; None keeps any.
  """
  for path in generations_dir.glob(f"{layout.SHARING}*"):
    step = int(path.name.removeprefix(layout.SHARING).partition("-")[0])
    superseded = (
      current is not None
      and path != current
      and current.name.startswith(f"{layout.SHARING}{step:08d}-")
    )
    if is_of_use(step) and not superseded:
      continue
    with contextlib.suppress(FileNotFoundError):
      lock = os.open(path / "members", os.O_RDWR | os.O_CREAT, 0o666)
      try:
        if _try_lock(lock, fcntl.LOCK_EX):
          logging.info("removing %s, of no use to anybody", path)
          _remove(path)
      finally:
        os.close(lock)


def sync(path: Path) -> None:
  """Makes a file, or a folder's names, durable."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def _whole(path: Path, read: Callable[[Path], _T]) -> _T | None:
  """What is in a file; None where there is none, or it is damaged."""
  try:
    return read(path)
  except FileNotFoundError:
    return None
  except ValueError as error:
    logging.warning("%s; it is made again", error)
    return None


def _try_lock(descriptor: int, kind: int) -> bool:
  try:
    fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  return True


def _is_at(descriptor: int, path: Path) -> bool:
  ours = os.fstat(descriptor)
  try:
    there = os.stat(path)
  except FileNotFoundError:
    return False
  return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


def _link(source: Path, target: Path) -> None:
  try:
    os.link(source, target)
  except FileNotFoundError:
    raise
  except OSError:
    # Not every file system has links.
    shutil.copyfile(source, target)


def _remove(directory: Path) -> None:
  """For all at once, and from the disk after."""
  name = f"{layout.REMOVING}{directory.name}-{secrets.token_hex(4)}"
  try:
    os.rename(directory, directory.with_name(name))
  except FileNotFoundError:
    return
  shutil.rmtree(directory.with_name(name), ignore_errors=True)
