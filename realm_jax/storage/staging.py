"""Verified local files of a manifest.

A manifest records the size and SHA-256 of each of its files. Files on a disk
are read in place. Files on an object store are copied to this host's cache:

    copies/<sha256>    a copy, verified when it was made
    links/…/<path>     links to the copies that one `StagedFiles` uses

Several processes, runs or versions share a copy. A copy is in use as long as it
has more than one link. Links are removed with their object or, if the process
is killed, when the next object is made on the host.
"""

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import os
import shutil
import sys
import threading
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from absl import logging
from etils import epath

from realm_jax.errors import RealmError
from realm_jax.storage.local_disk import (
  DiskFullError,
  ScratchDirectory,
  explain_full_disk,
)
from realm_jax.storage.paths import (
  COPIED_AT_ONCE,
  download,
  is_remote,
  sizes_below,
)

# Environment variables for the cache's folder, by default in the home
# directory, and for its maximum size in gigabytes (2^30 bytes).
DIRECTORY_VARIABLE = "REALM_JAX_CACHE_DIR"
LIMIT_VARIABLE = "REALM_JAX_CACHE_GB"
# The boot disk of a TPU host has 100.
_LIMIT_GB = 50.0
_ADVICE = (
  f"free some space, or set {DIRECTORY_VARIABLE} to a folder on another disk"
)
# Python's lock is taken once for each piece, so with large pieces a thread of
# low priority rarely waits for it.
_PIECE_BYTES = 1 << 23
# At this niceness a thread gets about a tenth of a normal thread's share: steps
# hardly slow down, and the work still ends if they use every core.
_NICENESS = 10


class DamagedFileError(RealmError):
  """A file is missing, truncated, or changed since it was recorded."""


def sha256_of(path: epath.PathLike, *, drop_pages: bool = False) -> str:
  """Returns the SHA-256 checksum of a file, in hexadecimal.

  With `drop_pages`, a local file's pages are dropped from the page cache after
  they are read, for verifying gigabytes next to a running trainer.
  """
  drop_pages &= not is_remote(path) and hasattr(os, "posix_fadvise")
  digest = hashlib.sha256()
  with epath.Path(path).open("rb") as file:
    while piece := file.read(_PIECE_BYTES):
      digest.update(piece)
      if drop_pages:
        os.posix_fadvise(file.fileno(), 0, file.tell(), os.POSIX_FADV_DONTNEED)
  return digest.hexdigest()


def require_below(path: str) -> None:
  """Checks a relative path in a manifest.

  A manifest may come from an untrusted source, and files are read and written
  at its paths.

  Raises:
    DamagedFileError: The path leads out of its folder, or is not normal.
  """
  if {"", ".", ".."} & {*str(path).split("/")}:
    raise DamagedFileError(
      f"a manifest names {path!r}, which is no path below its folder; remove "
      "what it describes, and make it again"
    )


@dataclasses.dataclass(frozen=True)
class FileRecord:
  """Path of a file in its folder, its size in bytes and its SHA-256.

  Raises:
    DamagedFileError: The path leads out of the folder.
  """

  path: str
  size: int
  sha256: str

  def __post_init__(self) -> None:
    require_below(self.path)

  @classmethod
  def of(cls, file: Path, path: str) -> "FileRecord":
    """Returns the record of a local file, which will be at `path`."""
    return cls(path, file.stat().st_size, sha256_of(file))

  @classmethod
  def from_entry(cls, path: str, entry: Mapping[str, Any]) -> "FileRecord":
    """Returns the record of a manifest's entry; the inverse of `entry`."""
    return cls(path, entry["bytes"], entry["sha256"])

  @property
  def entry(self) -> dict[str, Any]:
    """The record as an entry of a manifest whose files are keyed by path."""
    return {"bytes": self.size, "sha256": self.sha256}

  def problem_of(
    self,
    path: epath.PathLike,
    *,
    size: int | None = None,
    checksums: bool = True,
  ) -> str:
    """Describes how a file differs from the record, or returns ""."""
    try:
      size = epath.Path(path).stat().length if size is None else size
      if size != self.size:
        return f"has {size} bytes and not {self.size}"
      if checksums and sha256_of(path, drop_pages=True) != self.sha256:
        return "does not match its checksum"
    except (FileNotFoundError, NotADirectoryError):
      return "is missing"
    return ""


def record_files(root: Path, paths: Iterable[str]) -> tuple[FileRecord, ...]:
  """Reads local files below `root`, in parallel, and returns their records.

  Raises:
    FileNotFoundError: A file is missing.
  """
  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    return tuple(pool.map(lambda path: FileRecord.of(root / path, path), paths))


class StagedFiles:
  """Files of one manifest, each verified or copied on first use.

  A file that does not match its record is read once more, because the fault may
  have been this host's. A second mismatch raises an `error` of the given type,
  whose message ends with `advice`. With `low_priority`, for use during
  training, one thread of low priority reads local files, instead of one for
  each core.
  """

  def __init__(
    self,
    folder: epath.PathLike,
    records: Iterable[FileRecord],
    *,
    error: type[Exception] = DamagedFileError,
    advice: str = "",
    low_priority: bool = False,
  ):
    self._folder = epath.Path(folder)
    self._records = {file.path: file for file in records}
    self._error, self._advice = error, advice
    self._low_priority = low_priority
    self._lock = threading.Lock()
    self._verified: set[str] = set()
    self._links: ScratchDirectory | None = None
    if is_remote(folder):
      with explain_full_disk(cache_directory()):
        self._links = ScratchDirectory(cache_directory() / "links")

  @property
  def is_copied(self) -> bool:
    """Whether files are copied from an object store."""
    return self._links is not None

  @property
  def root(self) -> Path:
    """Local directory of the files that have been requested with `get`."""
    return self._links.path if self._links else Path(self._folder)

  @property
  def records(self) -> Collection[FileRecord]:
    """Records of all files."""
    return self._records.values()

  def paths(self, prefix: str = "") -> list[str]:
    """Returns the paths of all files, or of files with a prefix."""
    return [path for path in self._records if path.startswith(prefix)]

  def get(self, paths: Collection[str], *, again: bool = False) -> Path:
    """Returns the directory with these files, once they have been verified.

    With `again`, local files are verified even if they have been before.

    Raises:
      DamagedFileError, or the type given: A file is missing, cut or changed.
      DiskFullError: There is no space for copies.
    """
    if again and not self.is_copied:
      with self._lock:
        self._verified.clear()
    self._refuse(self.problems(paths))
    return self.root

  def problems(self, paths: Collection[str]) -> dict[str, str]:
    """Verifies or copies files; returns problems by path."""
    with self._lock:
      self._refuse(
        {p: "is not in its manifest" for p in paths if p not in self._records}
      )
      files = [self._records[p] for p in paths if p not in self._verified]
      workers, initializer = os.cpu_count(), None
      if self.is_copied:
        workers = COPIED_AT_ONCE
        files = [file for file in files if not self._link(file)]
        _make_room(sum(file.size for file in files))
      elif self._low_priority:
        workers, initializer = 1, lower_thread_priority
      with (
        explain_full_disk(self.root, advice=_ADVICE),
        concurrent.futures.ThreadPoolExecutor(
          workers, initializer=initializer
        ) as pool,
      ):
        pairs = zip(files, pool.map(self._problem, files), strict=True)
        problems = {file.path: problem for file, problem in pairs if problem}
      self._verified.update(path for path in paths if path not in problems)
    return problems

  def verify(self, *, checksums: bool = True) -> None:
    """Compares sizes and, with `checksums`, checksums of all files in place.

    Raises:
      DamagedFileError, or the type given: A file is missing, cut or changed.
    """
    sizes = sizes_below(self._folder) if self.is_copied else {}

    def problem_of(file: FileRecord) -> str:
      place, size = self._folder / file.path, sizes.get(file.path)
      return file.problem_of(place, size=size, checksums=checksums)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
      pairs = zip(self.records, pool.map(problem_of, self.records), strict=True)
      self._refuse({file.path: problem for file, problem in pairs if problem})

  def _link(self, file: FileRecord) -> bool:
    """Links a copy in the cache; returns whether there is one."""
    copy, path = _copies() / file.sha256, self.root / file.path
    try:
      if copy.stat().st_size != file.size:
        copy.unlink()
        return False
      os.utime(copy)
      path.parent.mkdir(parents=True, exist_ok=True)
      path.unlink(missing_ok=True)
      os.link(copy, path)
    except FileNotFoundError:
      return False  # There is none, or another process has just removed it.
    return True

  def _problem(self, file: FileRecord) -> str:
    """Verifies or copies a file, and tries again if it is damaged."""
    path, problem = self.root / file.path, ""
    for _ in range(2):
      if self.is_copied:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
          download(self._folder / file.path, path)
      if not (problem := file.problem_of(path)):
        # Another process may have copied it in the meantime.
        with contextlib.suppress(FileExistsError):
          if self.is_copied:
            os.link(path, _copies() / file.sha256)
        break
    return problem

  def _refuse(self, problems: Mapping[str, str]) -> None:
    """Raises the error of the first file with a problem."""
    for path, problem in problems.items():
      raise self._error(f"{self._folder}/{path} {problem}{self._advice}")


def lower_thread_priority() -> None:
  """Lowers the priority of the calling thread and of threads it will start.

  It cannot be raised again. Except on Linux, priorities are per process.
  """
  if sys.platform == "linux":
    thread = threading.get_native_id()
    niceness = os.getpriority(os.PRIO_PROCESS, thread)
    os.setpriority(os.PRIO_PROCESS, thread, max(niceness, _NICENESS))


def cache_directory() -> Path:
  """Returns the folder of this host's cache, from the environment."""
  if folder := os.environ.get(DIRECTORY_VARIABLE):
    return Path(folder).absolute()
  caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
  return Path(caches).absolute() / "realm_jax"


def _copies() -> Path:
  return cache_directory() / "copies"


def _make_room(size: int) -> None:
  """Removes copies that are not in use, the least recently used first."""
  folder = _copies()
  folder.mkdir(parents=True, exist_ok=True)
  limit = float(os.environ.get(LIMIT_VARIABLE) or _LIMIT_GB) * (1 << 30)
  copies = {}
  for path in folder.iterdir():
    with contextlib.suppress(FileNotFoundError):
      copies[path] = path.stat()
  total = size + sum(status.st_size for status in copies.values())
  for path in sorted(copies, key=lambda path: copies[path].st_mtime_ns):
    if total > limit and copies[path].st_nlink == 1:
      path.unlink(missing_ok=True)
      total -= copies[path].st_size
  if (free := shutil.disk_usage(folder).free) < size:
    raise DiskFullError(
      f"{folder} would need {size:,} bytes, and its disk has {free:,} free: "
      f"{_ADVICE}"
    )
  if total > limit:
    logging.warning(
      "%s has %.1f GB, all in use, and may have %.1f; set %s",
      *(folder, total / (1 << 30), limit / (1 << 30), LIMIT_VARIABLE),
    )
