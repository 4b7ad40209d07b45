"""Puts a directory in place whole, or not at all.

It is filled under a hidden name beside its own, and renamed; a process that is
killed leaves that hidden directory, which the next one clears away. On an
object store, which cannot rename, it is filled in place: what makes it valid
must be written last.
"""

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from etils import epath

from realm_jax.conversion.errors import ConversionError

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def check_target(output_dir: epath.PathLike) -> None:
  """Refuses a directory that has anything in it.

  Raises:
    ConversionError: it has, or is a file.
  """
  path = epath.Path(output_dir)
  if not path.exists():
    return
  if not path.is_dir():
    raise ConversionError(f"{path} is a file; name a directory")
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

  Leaving the context by an error removes it.

  Raises:
    ConversionError: `output_dir` is not empty, or another process is filling
      it, or the disk is full.
  """
  check_target(output_dir)
  if "://" in str(output_dir):
    yield epath.Path(output_dir)
    return
  target = Path(os.path.abspath(output_dir))
  target.parent.mkdir(parents=True, exist_ok=True)
  staging = target.parent / f".{target.name}.writing"
  staging.mkdir(exist_ok=True)
  lock = os.open(staging, os.O_RDONLY)
  try:
    _claim(staging, lock, target)
    try:
      yield epath.Path(staging)
      check_target(target)
      # An empty directory is replaced.
      staging.rename(target)
    except BaseException as error:
      shutil.rmtree(staging, ignore_errors=True)
      if isinstance(error, OSError) and error.errno in _NO_SPACE:
        raise ConversionError(
          f"the disk of {target} is full; nothing was written there: free "
          "some space, or name another --output_dir"
        ) from error
      raise
  finally:
    os.close(lock)


def _claim(staging: Path, lock: int, target: Path) -> None:
  try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    raise ConversionError(
      f"another process is writing {target} right now; wait for it, or name "
      "another directory"
    ) from None
  for path in staging.iterdir():
    shutil.rmtree(path) if path.is_dir() else path.unlink()
