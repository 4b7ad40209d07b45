"""Files of a published generation, on this host and verified."""

import concurrent.futures
import os
import threading
from collections.abc import Collection, Sequence
from pathlib import Path

from etils import epath

from realm_jax.files.local_disk.scratch import ScratchDirectory
from realm_jax.files.object_store.remote import is_remote
from realm_jax.generations.store import transfer
from realm_jax.generations.store.manifest import (
  DamagedGenerationError,
  FileRecord,
  Manifest,
)
from realm_jax.indexes.thread_priority import lower_thread_priority


class GenerationFiles:
  """Files of one generation, each verified or copied when it is asked for.

  Files on a disk are read where they are. Those on an object store are copied
  to a temporary directory, which is removed with this object. A file that does
  not match its checksum is read once more: the fault may have been this host's.

  Args:
    directory: Directory of the generation, local or on an object store.
    manifest: Manifest of the generation.
    low_priority: Whether one thread of low priority reads local files, as
      beside training, instead of one for each core.
  """

  def __init__(
    self,
    directory: epath.PathLike,
    manifest: Manifest,
    *,
    low_priority: bool = False,
  ):
    self._folder = epath.Path(directory) / manifest.folder
    self._records = {file.path: file for file in manifest.files}
    self._low_priority = low_priority
    self._lock = threading.Lock()
    self._verified: set[str] = set()
    self._scratch = ScratchDirectory() if is_remote(directory) else None

  @property
  def is_copied(self) -> bool:
    """Whether files are copied from an object store."""
    return self._scratch is not None

  @property
  def root(self) -> Path:
    """The local directory in which files are once they have been asked for."""
    return self._scratch.path if self._scratch else Path(self._folder)

  def below(self, prefix: str) -> list[str]:
    """Returns the paths of the files of a folder, such as `scann`."""
    return [path for path in self._records if path.startswith(f"{prefix}/")]

  def get(self, paths: Collection[str], *, again: bool = False) -> Path:
    """Returns the directory with these files, once they have been verified.

    With `again`, local files are verified even if they have been before.

    Raises:
      DamagedGenerationError: A file is missing, cut or changed.
      DiskFullError: There is no space for copies.
    """
    with self._lock:
      if again and not self.is_copied:
        self._verified.clear()
      wanted = [self._record(p) for p in paths if p not in self._verified]
      if self._scratch is not None:
        self._scratch.require_space(sum(file.size for file in wanted))
        folder, target = self._folder, self._scratch.path
        bad = transfer.download(folder, wanted, target)
      else:
        bad = self._differing(wanted)
      if bad:
        raise self._damaged(bad[0])
      self._verified.update(paths)
    return self.root

  def require_sizes(self, paths: Collection[str]) -> None:
    """Compares the sizes of local files, which takes no time.

    Raises:
      DamagedGenerationError: A file is missing or has another size.
    """
    if self._scratch is not None:
      return  # They are compared as they are copied.
    for file in map(self._record, paths):
      path = self.root / file.path
      if not path.is_file() or path.stat().st_size != file.size:
        raise self._damaged(file.path)

  def _record(self, path: str) -> FileRecord:
    if path not in self._records:
      raise self._damaged(path)
    return self._records[path]

  def _differing(self, wanted: Sequence[FileRecord]) -> list[str]:
    with concurrent.futures.ThreadPoolExecutor(
      1 if self._low_priority else os.cpu_count(),
      initializer=lower_thread_priority if self._low_priority else None,
    ) as pool:
      bad = transfer.differing(self.root, wanted, pool=pool)
      again = [file for file in wanted if file.path in bad]
      return transfer.differing(self.root, again, pool=pool)

  def _damaged(self, path: str) -> DamagedGenerationError:
    record, problem = self._records.get(path), "is not in its manifest"
    if record is not None:
      problem = "is missing"
      if self._scratch is None and (self.root / path).is_file():
        size = (self.root / path).stat().st_size
        problem = "does not match its checksum"
        if size != record.size:
          problem = f"has {size} bytes and not {record.size}"
      elif self._scratch is not None and (self.root / path).is_file():
        problem = "does not match its checksum, also when it was copied again"
    return DamagedGenerationError(
      f"{self._folder / path} {problem}, so its generation is damaged; remove "
      "it and let build_index make it again"
    )
