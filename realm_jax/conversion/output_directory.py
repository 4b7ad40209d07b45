"""The new directory that an import or an export writes.

It appears complete or not at all. On an object store, which cannot rename, it
is filled in place: the file that makes it valid must be written last.
"""

import contextlib
from collections.abc import Iterator

from etils import epath

from realm_jax.conversion.errors import ConversionError
from realm_jax.files.local_disk.disk_full import explain_full_disk
from realm_jax.files.object_store.remote import is_remote
from realm_jax.files.object_store.store_access import require_writable
from realm_jax.files.whole import whole_directory


def check_new(output_dir: epath.PathLike) -> None:
  """Checks that a directory is absent or empty, and can be written.

  Raises:
    ConversionError: If the directory has files in it.
    TargetError: If the path is a file, or a disk is mounted there.
    StoreAccessError: If the path is in a bucket that cannot be written.
  """
  require_writable(output_dir)
  path = epath.Path(output_dir)
  whole_directory.check_target(path)
  if not path.exists():
    return
  names = sorted(p.name for p in path.iterdir())
  if names:
    held = (
      "is a MODEL_DIR that has checkpoints already"
      if "checkpoints" in names
      else f"has files in it ({', '.join(names[:3])}, …)"
    )
    raise ConversionError(
      f"{path} {held}; name a new directory for --output_dir"
    )


@contextlib.contextmanager
def new_directory(output_dir: epath.PathLike) -> Iterator[epath.Path]:
  """Makes a directory to fill, which becomes `output_dir` at the end.

  If the block raises, the directory is removed, except on an object store.

  Raises:
    ConversionError, TargetError: As `check_new`, or another process fills it.
    DiskFullError: If the disk is full.
  """
  check_new(output_dir)
  if is_remote(output_dir):
    yield epath.Path(output_dir)
    return
  advice = "free some space, or name another --output_dir"
  with (
    explain_full_disk(output_dir, advice=advice),
    whole_directory.staging_directory(output_dir) as staging,
  ):
    yield epath.Path(staging)
    check_new(output_dir)
    whole_directory.rename_into_place(staging, output_dir)
