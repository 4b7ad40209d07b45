"""Files of a manifest, on this host and verified.

A manifest records the size and SHA-256 of each of its files. Files on a disk
are read where they are; those on an object store are copied.
"""

import concurrent.futures
import dataclasses
import os
import threading
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from etils import epath

from realm_jax.files.checksum import sha256_of
from realm_jax.files.local_disk.scratch import ScratchDirectory
from realm_jax.files.object_store.remote import (
  COPIED_AT_ONCE,
  download,
  is_remote,
)
from realm_jax.files.thread_priority import lower_thread_priority

_MISSING = (FileNotFoundError, NotADirectoryError)


class DamagedFileError(ValueError):
  """A file that is missing, cut or changed since it was recorded."""


@dataclasses.dataclass(frozen=True)
class FileRecord:
  """Path of a file in its folder, its size in bytes and its SHA-256."""

  path: str
  size: int
  sha256: str

  def problem_of(self, file: Path) -> str:
    """Returns how a local file differs from this record, or ""."""
    try:
      if (size := file.stat().st_size) != self.size:
        return f"has {size} bytes and not {self.size}"
      if sha256_of(file, drop_pages=True) != self.sha256:
        return "does not match its checksum"
    except _MISSING:
      return "is missing"
    return ""


def record_files(
  root: Path, paths: Iterable[str], *, drop_pages: bool = False
) -> tuple[FileRecord, ...]:
  """Returns the records of local files below `root`, which are read at once.

  With `drop_pages` the system's page cache gives up what was read. A missing
  file is a FileNotFoundError.
  """

  def record(path: str) -> FileRecord:
    checksum = sha256_of(root / path, drop_pages=drop_pages)
    return FileRecord(path, (root / path).stat().st_size, checksum)

  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    return tuple(pool.map(record, paths))


class StagedFiles:
  """Files of one manifest, each verified or copied when it is asked for.

  Copies are in a temporary directory, which is removed with this object. A file
  that does not match its record is read once more: the fault may have been this
  host's.

  Args:
    folder: Folder of the files, local or on an object store.
    records: Records of the manifest.
    error: Type of the error for a damaged file.
    advice: Part of its message: what follows from the damage, and what to do.
    low_priority: Whether one thread of low priority reads local files, as
      beside training, instead of one for each core.
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
    self._scratch = ScratchDirectory() if is_remote(folder) else None

  @property
  def is_copied(self) -> bool:
    """Whether files are copied from an object store."""
    return self._scratch is not None

  @property
  def root(self) -> Path:
    """The local directory in which files are once they have been asked for."""
    return self._scratch.path if self._scratch else Path(self._folder)

  def below(self, prefix: str) -> list[str]:
    """Returns the paths of the files of a subfolder."""
    return [path for path in self._records if path.startswith(f"{prefix}/")]

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
    for path, problem in self.problems(paths).items():
      raise self._damaged(path, problem)
    return self.root

  def problems(self, paths: Collection[str]) -> dict[str, str]:
    """Verifies files, or copies them; returns what is wrong with which.

    Raises:
      DamagedFileError, or the type given: A file is not in the manifest.
      DiskFullError: There is no space for copies.
    """
    with self._lock:
      wanted = [self._record(p) for p in paths if p not in self._verified]
      if self._scratch is not None:
        self._scratch.require_space(sum(file.size for file in wanted))
      check: Callable[[FileRecord], str] = self._check
      workers, initializer = os.cpu_count(), None
      if self.is_copied:
        check, workers = self._copy, COPIED_AT_ONCE
      elif self._low_priority:
        workers, initializer = 1, lower_thread_priority
      with concurrent.futures.ThreadPoolExecutor(
        workers, initializer=initializer
      ) as pool:
        found = zip(wanted, pool.map(check, wanted), strict=True)
        problems = {file.path: problem for file, problem in found if problem}
      self._verified.update(file.path for file in wanted)
      self._verified.difference_update(problems)
    return problems

  def require_sizes(self, paths: Collection[str]) -> None:
    """Compares the sizes of local files, which takes no time.

    Copies are compared as they are made.

    Raises:
      DamagedFileError, or the type given: A file is missing or has another
        size.
    """
    for file in map(self._record, () if self.is_copied else paths):
      path = self.root / file.path
      if not path.is_file():
        raise self._damaged(file.path, "is missing")
      if (size := path.stat().st_size) != file.size:
        raise self._damaged(file.path, f"has {size} bytes and not {file.size}")

  def _record(self, path: str) -> FileRecord:
    if path not in self._records:
      raise self._damaged(path, "is not in its manifest")
    return self._records[path]

  def _check(self, file: FileRecord) -> str:
    path = self.root / file.path
    return file.problem_of(path) and file.problem_of(path)

  def _copy(self, file: FileRecord) -> str:
    path = self.root / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    problem = ""
    for _ in range(2):
      try:
        download(self._folder / file.path, path)
      except FileNotFoundError:
        return "is missing"
      if not (problem := file.problem_of(path)):
        return ""
    return f"{problem}, also when it was copied again"

  def _damaged(self, path: str, problem: str) -> Exception:
    return self._error(f"{self._folder / path} {problem}{self._advice}")
