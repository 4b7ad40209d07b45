"""Puts a directory in place whole, or not at all.

On an object store, which cannot rename, it is filled in place: what makes it
valid must be written last.
"""

import contextlib
from collections.abc import Iterator

from etils import epath

from realm_jax.conversion.errors import ConversionError
from realm_jax.files import whole_directory as files
from realm_jax.files.disk_full import explain_full_disk
from realm_jax.files.remote import is_remote


def check_target(output_dir: epath.PathLike) -> None:
  """Refuses a directory that has anything in it, or that cannot be renamed to.

  Raises:
    ConversionError: The directory has files.
    TargetError: The path is a file, or a disk is mounted there.
  """
  path = epath.Path(output_dir)
  files.check_target(path)
  if not path.exists():
    return
  if (path / "checkpoints").exists():
    raise ConversionError(
      f"{path} is a MODEL_DIR that has checkpoints already; name a new "
      "directory for --output_dir"
    )
  if names := sorted(p.name for p in path.iterdir()):
    raise ConversionError(
      f"{path} has files in it ({', '.join(names[:3])}, …); name a new "
      "directory for --output_dir"
    )


@contextlib.contextmanager
def whole_directory(output_dir: epath.PathLike) -> Iterator[epath.Path]:
  """Gives a directory to fill, which becomes `output_dir` at the end.

  Leaving the context by an error removes it, but on an object store.

  Raises:
    ConversionError: The directory has files.
    TargetError: Another process prepares it, or no directory can be there.
    DiskFullError: The disk is full.
  """
  check_target(output_dir)
  if is_remote(output_dir):
    yield epath.Path(output_dir)
    return
  with (
    explain_full_disk(
      output_dir, advice="free some space, or name another --output_dir"
    ),
    files.staging_directory(output_dir) as staging,
  ):
    yield epath.Path(staging)
    check_target(output_dir)
    files.rename_into_place(staging, output_dir)
