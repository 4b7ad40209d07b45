"""Local copies of files of an object store, which processes of a host share.

    <sha256>             a copy, verified when it was made
    .<sha256>.partial    a copy that is being made, locked by who makes it
    .holders/…           what each process uses, locked while it lives

A copy that several versions or runs name is there once. Copies that no process
uses go when there are more bytes than the cache may have, those first that were
not used for longest.
"""

import contextlib
import dataclasses
import fcntl
import functools
import os
import secrets
import threading
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from absl import logging
from etils import epath

from realm_jax.files.checksum import sha256_of
from realm_jax.files.local_disk.disk_full import explain_full_disk
from realm_jax.files.object_store.remote import COPIED_AT_ONCE, download

# Environment variables: another cache than the one at home, and how many
# gigabytes (2^30 bytes) it may have.
DIRECTORY_VARIABLE = "REALM_JAX_CACHE_DIR"
LIMIT_VARIABLE = "REALM_JAX_CACHE_GB"
# The boot disk of a TPU host has 100.
_LIMIT_GB = 50.0
_LOCK = ".lock"
_HOLDERS = ".holders"
_PARTIAL = ".partial"


class DamagedCopyError(ValueError):
  """A file that has not the checksum that is recorded, read twice."""


@dataclasses.dataclass(frozen=True)
class RemoteFile:
  """A file of an object store, and what its manifest records of it."""

  path: epath.Path
  bytes: int
  sha256: str


def default_cache() -> "FileCache":
  """Returns the cache of this host, as environment variables describe it."""
  folder = os.environ.get(DIRECTORY_VARIABLE)
  limit = float(os.environ.get(LIMIT_VARIABLE) or _LIMIT_GB)
  home = Path.home() / ".cache" / "realm_jax"
  return _opened(Path(folder) if folder else home, int(limit * (1 << 30)))


@functools.cache
def _opened(folder: Path, limit_bytes: int) -> "FileCache":
  return FileCache(folder / "files", limit_bytes=limit_bytes)


class FileCache:
  """The copies in a folder, as one process uses them.

  Args:
    folder: Folder of the cache, on a local disk.
    limit_bytes: Size that the cache may have; what processes use may be more.
  """

  def __init__(self, folder: Path, *, limit_bytes: int):
    self._folder = folder
    self._limit_bytes = limit_bytes
    self._holder: int | None = None
    self._thread_lock = threading.Lock()

  def get(self, files: Sequence[RemoteFile]) -> list[Path]:
    """Returns local copies, which stay while this process lives.

    Those that are missing are made, several at once, and verified.

    Raises:
      DamagedCopyError: A file has another checksum than is recorded.
      FileNotFoundError: A file is missing from the object store.
      DiskFullError: The disk of the cache is full.
    """
    with (
      explain_full_disk(
        self._folder,
        advice=f"free some space, or set {DIRECTORY_VARIABLE} to a folder on "
        "another disk",
      ),
      ThreadPoolExecutor(COPIED_AT_ONCE) as pool,
    ):
      with self._exclusive():
        self._hold(files)
        missing = [file for file in files if not self._is_there(file)]
        self._make_room(missing)
      list(pool.map(self._copy, missing))
    return [self._folder / file.sha256 for file in files]

  def _is_there(self, file: RemoteFile) -> bool:
    copy = self._folder / file.sha256
    try:
      os.utime(copy)
    except FileNotFoundError:
      return False
    return copy.stat().st_size == file.bytes

  @contextlib.contextmanager
  def _exclusive(self) -> Iterator[None]:
    """Keeps other processes and threads from changing what is held."""
    (self._folder / _HOLDERS).mkdir(parents=True, exist_ok=True)
    with self._thread_lock, (self._folder / _LOCK).open("a") as lock:
      fcntl.flock(lock, fcntl.LOCK_EX)
      yield

  def _hold(self, files: Sequence[RemoteFile]) -> None:
    """Notes what this process uses, until it ends in whatever way."""
    if self._holder is None:
      name = f"{os.getpid()}-{secrets.token_hex(4)}"
      flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
      self._holder = os.open(self._folder / _HOLDERS / name, flags, 0o666)
      fcntl.flock(self._holder, fcntl.LOCK_EX)
    os.write(self._holder, "".join(f"{f.sha256}\n" for f in files).encode())

  def _make_room(self, missing: Sequence[RemoteFile]) -> None:
    """Removes leftovers, and copies that nobody uses where space is wanted."""
    held = self._held()
    sizes = {}
    for path in self._folder.iterdir():
      if path.name.endswith(_PARTIAL):
        _remove_unless_locked(path)
      elif not path.name.startswith("."):
        sizes[path] = path.stat()
    total = sum(size.st_size for size in sizes.values())
    total += sum(file.bytes for file in missing)
    for path in sorted(sizes, key=lambda path: sizes[path].st_mtime_ns):
      if total <= self._limit_bytes:
        return
      if path.name not in held:
        path.unlink()
        total -= sizes[path].st_size
    if total > self._limit_bytes:
      logging.warning(
        "%s has %.1f GB, all in use, and may have %.1f; set %s",
        *(self._folder, total / (1 << 30), self._limit_bytes / (1 << 30)),
        LIMIT_VARIABLE,
      )

  def _held(self) -> Collection[str]:
    """Returns the checksums of what living processes use."""
    held: set[str] = set()
    for path in (self._folder / _HOLDERS).iterdir():
      if not _remove_unless_locked(path):
        held.update(path.read_text().split())
    return held

  def _copy(self, file: RemoteFile) -> None:
    """Makes a copy, unless another process makes it meanwhile."""
    target = self._folder / file.sha256
    with _locked(self._folder / f".{file.sha256}{_PARTIAL}") as partial:
      if target.exists() and target.stat().st_size == file.bytes:
        partial.unlink()
        return
      for _ in range(2):
        download(file.path, partial)
        if sha256_of(partial) == file.sha256:
          partial.rename(target)
          return
      partial.unlink()
    raise DamagedCopyError(
      f"{file.path} does not have the checksum of its manifest"
    )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[Path]:
  """Creates a file and locks it, once the process before has finished."""
  while True:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
      fcntl.flock(descriptor, fcntl.LOCK_EX)
      # The one before may have renamed or removed what was opened.
      if _is_open_at(path, descriptor):
        yield path
        return
    finally:
      os.close(descriptor)


def _is_open_at(path: Path, descriptor: int) -> bool:
  try:
    return os.path.samestat(os.fstat(descriptor), os.stat(path))
  except FileNotFoundError:
    return False


def _remove_unless_locked(path: Path) -> bool:
  """Removes a file whose process has ended; returns whether it has."""
  try:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
  except FileNotFoundError:
    return True
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    path.unlink(missing_ok=True)
    return True
  except BlockingIOError:
    return False
  finally:
    os.close(descriptor)
