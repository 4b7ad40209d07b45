"""The files of a corpus, as local ones, since only those can be mapped.

Those of a corpus on an object store are copied to a cache when they are first
used: an array in all shards at once, and none that a run does not read.
"""

import threading
from pathlib import Path, PurePosixPath

from absl import logging
from etils import epath

from realm_jax.corpus.errors import CorpusError
from realm_jax.corpus.manifest import Manifest, files_of
from realm_jax.files.object_store.file_cache import (
  DamagedCopyError,
  FileCache,
  RemoteFile,
  default_cache,
)
from realm_jax.files.object_store.remote import is_remote, objects_below


class CorpusFiles:
  """The files of arrays of a corpus version.

  Args:
    directory: Directory of the corpus, local or on an object store.
    manifest: Manifest of the version.
    cache: Cache of copies; None takes that of the host.
  """

  def __init__(
    self,
    directory: epath.Path,
    manifest: Manifest,
    *,
    cache: FileCache | None = None,
  ):
    self._directory = directory
    self._records = files_of(manifest)
    self._cache = cache
    self._copies: dict[str, Path] | None = {} if is_remote(directory) else None
    self._lock = threading.Lock()

  def local(self, name: str) -> Path:
    """Returns a local file, by its path in the directory.

    Raises:
      CorpusError: It is missing from an object store, or does not match the
        manifest.
      DiskFullError: The disk of the cache is full.
    """
    if self._copies is None:
      return Path(self._directory) / name
    with self._lock:
      if name not in self._copies:
        self._fetch(name)
      return self._copies[name]

  def require_sizes(self) -> None:
    """Raises `CorpusError` if a file is missing or has another size."""
    sizes: dict[str, int] = {}
    if self._copies is not None:
      found = objects_below(self._directory)
      sizes = {name: info.bytes for name, info in found.items()}
    for name, record in self._records.items():
      path = self._directory / name
      size = sizes.get(name)
      if self._copies is None and path.is_file():
        size = path.stat().length
      if size is None:
        raise CorpusError(f"{path} is missing; copy or build the corpus again")
      if size != record["bytes"]:
        raise CorpusError(
          f"{path} has {size} bytes and its manifest says {record['bytes']}; "
          "copy or build the corpus again"
        )

  def _fetch(self, name: str) -> None:
    """Copies a file, and those of the same array in the other shards."""
    assert self._copies is not None
    together = [other for other in self._records if _kind(other) == _kind(name)]
    files = []
    for other in together:
      record = self._records[other]
      size, checksum = record["bytes"], record["sha256"]
      files.append(RemoteFile(self._directory / other, size, checksum))
    logging.info(
      "Copying %s of %s to the cache, unless it is there (%.1f MB)",
      *(_kind(name), self._directory, sum(f.bytes for f in files) / 1e6),
    )
    try:
      paths = (self._cache or default_cache()).get(files)
    except FileNotFoundError as error:
      raise CorpusError(
        f"{error} is missing; copy or build the corpus again"
      ) from error
    except DamagedCopyError as error:
      raise CorpusError(
        f"{error}, or was not copied whole; try again, and build the corpus "
        "again if that does not help"
      ) from error
    self._copies |= dict(zip(together, paths, strict=True))


def _kind(name: str) -> str:
  """Returns what the files of an array have in common in all shards."""
  path = PurePosixPath(name)
  return path.name if path.parts[0].startswith("shard-") else path.parts[0]
