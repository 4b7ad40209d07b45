"""Copies of a generation's files from an object store, checked."""

import concurrent.futures
import os
from collections.abc import Sequence
from pathlib import Path

from etils import epath

from realm_jax.files.checksum import sha256_of
from realm_jax.files.object_store import remote
from realm_jax.generations.store.manifest import FileRecord


def download(
  folder: epath.Path, files: Sequence[FileRecord], target: Path
) -> list[str]:
  """Copies files from an object store into a local directory.

  A copy that does not match its record is made once more. Returns the paths of
  those that still do not match, or are missing.
  """

  def copy(file: FileRecord) -> str | None:
    path = target / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(2):
      try:
        remote.download(folder / file.path, path)
      except FileNotFoundError:
        return file.path
      if _matches(path, file):
        return None
    return file.path

  with concurrent.futures.ThreadPoolExecutor(remote.COPIED_AT_ONCE) as pool:
    return [path for path in pool.map(copy, files) if path is not None]


def differing(
  directory: Path,
  files: Sequence[FileRecord],
  *,
  pool: concurrent.futures.Executor | None = None,
) -> list[str]:
  """Returns the paths of local files that are missing or were changed.

  Without a pool, one thread for each core reads.
  """

  def compare(file: FileRecord) -> str | None:
    return None if _matches(directory / file.path, file) else file.path

  if pool is not None:
    return [path for path in pool.map(compare, files) if path is not None]
  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as own:
    return differing(directory, files, pool=own)


def _matches(path: Path, file: FileRecord) -> bool:
  try:
    same_size = path.stat().st_size == file.size
    return same_size and sha256_of(path, drop_pages=True) == file.sha256
  except (FileNotFoundError, NotADirectoryError):
    return False
