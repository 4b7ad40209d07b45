"""Files that appear complete, or not at all, locally and on object stores.

A local file is written under a hidden name beside its target, synced and
renamed. A writer that is killed leaves the hidden file, which the next one
overwrites. An object store has neither renames nor appends: there the file is
written to a temporary folder and uploaded as one object.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from etils import epath

from realm_jax.files.local_disk.scratch import ScratchDirectory
from realm_jax.files.object_store.remote import is_remote, upload
from realm_jax.files.whole.durable import sync


@contextlib.contextmanager
def whole_file(
  path: epath.PathLike, *, several_writers: bool = False
) -> Iterator[Path]:
  """Yields a local path to write to, which becomes `path` at the end.

  The directory of `path` is created. If the block raises, `path` stays as it
  was. The file is on the disk, or in the object store, when the block has
  ended.

  Args:
    path: File to replace, local or on an object store.
    several_writers: Whether processes may write `path` at the same time; the
      last of them wins. Then the hidden file of one that is killed stays.

  Raises:
    OSError: The disk is full, the directory cannot be written to, or the
      object store refuses the file.
  """
  target = epath.Path(path)
  if is_remote(target):
    with ScratchDirectory() as scratch:
      written = scratch.path / target.name
      yield written
      upload(written, target)
    return
  target.parent.mkdir(parents=True, exist_ok=True)
  suffix = f"{os.urandom(4).hex()}.partial" if several_writers else "partial"
  partial = Path(target).with_name(f".{target.name}.{suffix}")
  try:
    yield partial
    sync(partial)
    partial.replace(target)
  except BaseException:
    partial.unlink(missing_ok=True)
    raise
  sync(Path(target.parent))
