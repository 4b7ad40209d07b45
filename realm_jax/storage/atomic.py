"""Files and directories that appear complete, or not at all.

On a local disk, they are prepared under a hidden name next to their target,
synced and renamed. Left-overs of a killed process are removed by the next one
that prepares the same target. For an object store, which has no renames, they
are prepared in a temporary directory and uploaded, with the file that makes a
directory valid last.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from absl import logging
from etils import epath

from realm_jax.errors import RealmError
from realm_jax.storage.local_disk import (
  ScratchDirectory,
  locked,
  sync,
  sync_tree,
)
from realm_jax.storage.paths import is_remote, upload


class TargetError(RealmError):
  """A directory cannot be written at a path, or not now."""


@contextlib.contextmanager
def atomic_file(
  path: epath.PathLike, *, several_writers: bool = False
) -> Iterator[Path]:
  """Yields a local path to write to, which becomes `path` at the end.

  The directory of `path` is created. If the block raises, `path` is unchanged.
  With `several_writers`, several processes may write it at the same time: the
  last one wins, and the hidden file of a killed one stays.

  Raises:
    OSError: The disk is full, or the path cannot be written to.
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


@contextlib.contextmanager
def atomic_text_file(path: epath.PathLike) -> Iterator[IO[str]]:
  """Opens a UTF-8 file that replaces `path` at the end (see `atomic_file`)."""
  with (
    atomic_file(path) as partial,
    partial.open("w", encoding="utf-8") as file,
  ):
    yield file


def check_target(path: epath.PathLike) -> None:
  """Raises a `TargetError` if no directory can be renamed to a path."""
  target = epath.Path(path)
  if target.exists() and not target.is_dir():
    raise TargetError(f"{target} is a file; name a directory")
  if not is_remote(target) and os.path.ismount(Path(target).resolve()):
    raise TargetError(
      f"{target} is the mount point of a disk, and new files are prepared "
      "beside it, on another disk, from which they cannot be renamed; name a "
      f"directory in it, such as {target / 'new'}"
    )


@contextlib.contextmanager
def staging_directory(target: epath.PathLike) -> Iterator[Path]:
  """Makes an empty directory in which to prepare the contents of `target`.

  On a local disk, it is a hidden sibling of the target. It is removed when the
  block ends, unless it was renamed.

  Raises:
    TargetError: Another process is preparing the same target.
  """
  if is_remote(target):
    with ScratchDirectory() as scratch:
      yield scratch.path
    return
  path = Path(target).resolve()
  path.parent.mkdir(parents=True, exist_ok=True)
  staging = path.parent / f".{path.name}.building"
  staging.mkdir(exist_ok=True)
  with contextlib.ExitStack() as stack:
    try:
      stack.enter_context(locked(staging))
    except BlockingIOError:
      raise TargetError(
        f"another process is building {path} right now; wait for it, or name "
        "another directory"
      ) from None
    inode = staging.stat().st_ino
    try:
      for leftover in staging.iterdir():
        logging.info("Removing what a killed process left: %s", leftover)
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
      yield staging
    finally:
      # After a rename, another process may have made a new one.
      if staging.exists() and staging.stat().st_ino == inode:
        shutil.rmtree(staging, ignore_errors=True)


def rename_into_place(
  staging: Path, target: epath.PathLike, *, overwrite: bool = False
) -> None:
  """Makes a prepared local directory durable and renames it to `target`.

  An empty target is replaced. One with files is replaced only with `overwrite`,
  and is then missing for a moment, between two renames.

  Raises:
    OSError: The target has files, and `overwrite` is False.
  """
  # Resolved, so that the rename replaces the target of symbolic links.
  path = Path(target).resolve()
  sync_tree(staging)
  replaced = path.parent / f".{path.name}.replaced"
  shutil.rmtree(replaced, ignore_errors=True)
  if overwrite and path.exists():
    path.rename(replaced)
  staging.rename(path)
  sync(path.parent)
  shutil.rmtree(replaced, ignore_errors=True)
