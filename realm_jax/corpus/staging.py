"""The files of a corpus, as local ones, since only those can be mapped.

Those of a corpus on an object store are copied to a cache when they are first
used: an array in all shards at once, and none that a run does not read.
"""

from pathlib import Path, PurePosixPath

from absl import logging
from etils import epath

from realm_jax.corpus.errors import CorpusError
from realm_jax.corpus.manifest import Manifest, files_of
from realm_jax.storage.staging import FileRecord, StagedFiles


class CorpusFiles:
  """The files of arrays of a corpus version.

  Args:
    directory: Directory of the corpus, local or on an object store.
    manifest: Manifest of the version.
  """

  def __init__(self, directory: epath.Path, manifest: Manifest):
    self._directory = directory
    self._names = list(files_of(manifest))
    self._staged = StagedFiles(
      directory,
      [
        FileRecord(name, record["bytes"], record["sha256"])
        for name, record in files_of(manifest).items()
      ],
      error=CorpusError,
      advice="; copy or build the corpus again",
      verify_local=False,
    )
    self._copied: set[str] = set()

  def local(self, name: str) -> Path:
    """Returns a local file, by its path in the directory.

    Raises:
      CorpusError: It is missing from an object store, or does not match the
        manifest.
      DiskFullError: The disk of the cache is full.
    """
    kind = _kind(name)
    if self._staged.is_copied and kind not in self._copied:
      logging.info("Copying %s of %s to the cache", kind, self._directory)
      self._staged.get([other for other in self._names if _kind(other) == kind])
      self._copied.add(kind)
    return self._staged.root / name

  def require_sizes(self) -> None:
    """Raises `CorpusError` if a file is missing or has another size."""
    self._staged.require_sizes(self._names)


def _kind(name: str) -> str:
  """Returns what the files of an array have in common in all shards."""
  path = PurePosixPath(name)
  return path.name if path.parts[0].startswith("shard-") else path.parts[0]
