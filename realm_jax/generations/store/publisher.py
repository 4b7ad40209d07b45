"""Publication: a generation appears complete, or not at all.

Locally it is written to a hidden directory, made durable, and renamed. An
object store has no rename: there the files go to a folder with a new name, and
the manifest, which names that folder, is written last. Folders that no manifest
names, of a killed or replaced build, stay until the generation is pruned,
because nobody can tell whether one is being written or read.
"""

import contextlib
import dataclasses
import datetime
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from absl import logging
from etils import epath

from realm_jax.files import remote
from realm_jax.files.disk_full import explain_full_disk
from realm_jax.files.durable import sync, sync_tree
from realm_jax.files.whole_directory import copy_files
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.file_lock import locked
from realm_jax.generations.store.manifest import Manifest

# A younger directory may belong to a process that has not locked it yet.
_MIN_LEFTOVER_SECONDS = 60.0
# Beside the directory, because not every file system locks directories.
_LOCK_SUFFIX = ".lock"


def disk_full_explained(
  generations_dir: epath.PathLike, step: int
) -> contextlib.AbstractContextManager[None]:
  """Turns the error of a full disk into a `DiskFullError` that says more."""
  return explain_full_disk(
    layout.path_of(generations_dir, step),
    advice="free some space or lower KEEP_GENERATIONS. Published generations "
    "are unchanged",
  )


def publish(
  generations_dir: epath.PathLike,
  step: int,
  write: Callable[[Path], Manifest],
  *,
  replaces: Callable[[Manifest], bool] = lambda manifest: False,
) -> bool:
  """Publishes the generation of a checkpoint step.

  Args:
    generations_dir: Directory of the generations, local or on an object store.
    step: Checkpoint step of the generation.
    write: Function that writes all files but the manifest to an empty local
      directory and returns the manifest. Files that it lists are compared with
      what was written.
    replaces: Function that decides whether a valid generation of this step,
      published meanwhile, is replaced. A damaged one is.

  Returns:
    Whether it was published; False where another worker was first.

  Raises:
    DiskFullError: The disk is full; nothing published has changed.
    DamagedFileError: A file differs from what the manifest lists.
  """
  directory = epath.Path(generations_dir)
  published = layout.path_of(directory, step)
  with disk_full_explained(directory, step):
    directory.mkdir(parents=True, exist_ok=True)
    if remote.is_remote(directory):
      with tempfile.TemporaryDirectory(prefix=layout.BUILDING) as built:
        return _copy(Path(built), published, write(Path(built)), replaces)
    remove_leftovers(directory)
    with _building_directory(Path(directory), step) as built:
      manifest = _with_files(built, write(built))
      (built / layout.MANIFEST).write_text(manifest.to_json())
      sync_tree(built)
      return _rename(built, Path(published), replaces)


def is_current(
  published: epath.Path, replaces: Callable[[Manifest], bool]
) -> bool:
  """Returns whether a valid generation is published, and not to be replaced."""
  if not (published / layout.MANIFEST).exists():
    return False
  try:
    manifest = manifests.read(published)
    manifests.verify(published, manifest, checksums=False)
  except manifests.GenerationError as error:
    logging.warning("%s; it is replaced", error)
    return False
  return not replaces(manifest)


def _with_files(built: Path, manifest: Manifest) -> Manifest:
  """Adds the records of all files and the time to a manifest."""
  paths = sorted(
    str(path.relative_to(built)) for path in built.rglob("*") if path.is_file()
  )
  files = manifests.records_of(built, paths)
  for file in manifest.files:
    if file not in files:
      raise manifests.DamagedFileError(
        f"{file.path} has changed since it was written"
      )
  created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
  return dataclasses.replace(manifest, files=files, created=created)


def _rename(
  built: Path, target: Path, replaces: Callable[[Manifest], bool]
) -> bool:
  """Renames a directory into place, and the one that was there aside.

  Between the two renames there is none for a moment. If the process is killed
  then, `remove_leftovers` puts the old one back.
  """
  name = f"{layout.REPLACED}{target.name}-{secrets.token_hex(4)}"
  aside, trash = target.with_name(name), None
  with locked(target.parent / layout.COMMIT_LOCK):
    if is_current(epath.Path(target), replaces):
      return False
    if replaced := target.exists():
      os.rename(target, aside)
    try:
      os.rename(built, target)
    except OSError:
      if replaced:
        os.rename(aside, target)
      raise
    sync(target.parent)
    if replaced:
      trash = _rename_to_trash(aside)
  _delete(trash)
  return True


def _copy(
  built: Path,
  published: epath.Path,
  manifest: Manifest,
  replaces: Callable[[Manifest], bool],
) -> bool:
  """Copies files to a folder with a new name, and the manifest last."""
  manifest = _with_files(built, manifest)
  if is_current(published, replaces):
    return False
  folder = f"build-{secrets.token_hex(6)}"
  copy_files(built, published / folder)
  manifest = dataclasses.replace(manifest, folder=folder)
  (published / layout.MANIFEST).write_text(manifest.to_json())
  return True


@contextlib.contextmanager
def _building_directory(directory: Path, step: int) -> Iterator[Path]:
  """Makes a hidden directory that is locked while this process lives."""
  name = f"{layout.BUILDING}{step:08d}-{os.getpid()}-{secrets.token_hex(4)}"
  built, lock = directory / name, directory / f"{name}{_LOCK_SUFFIX}"
  with locked(lock):
    try:
      built.mkdir()
      yield built
    finally:
      shutil.rmtree(built, ignore_errors=True)
      lock.unlink(missing_ok=True)


def remove_leftovers(generations_dir: epath.PathLike) -> None:
  """Completes what killed processes began: builds, replacements, deletions.

  On an object store nothing is removed, because nobody can tell whether a
  folder is being written.
  """
  if remote.is_remote(generations_dir):
    return
  directory = Path(generations_dir)
  if any(directory.glob(f"{layout.REPLACED}*")):
    with locked(directory / layout.COMMIT_LOCK):
      for path in directory.glob(f"{layout.REPLACED}*"):
        name = path.name.removeprefix(layout.REPLACED).partition("-")[0]
        if (directory / name).exists():
          _rename_to_trash(path)
        else:
          logging.warning("putting generation %d back", int(name))
          path.rename(directory / name)
  for path in directory.glob(f"{layout.TRASH}*"):
    _delete(path)
  for path in directory.glob(f"{layout.BUILDING}*"):
    with contextlib.suppress(FileNotFoundError):
      if time.time() - path.stat().st_mtime >= _MIN_LEFTOVER_SECONDS:
        _remove_abandoned(directory / path.name.removesuffix(_LOCK_SUFFIX))


def _remove_abandoned(built: Path) -> None:
  """Removes a building directory if the process that locked it is gone."""
  lock = built.with_name(f"{built.name}{_LOCK_SUFFIX}")
  with locked(lock, wait=False) as is_ours:
    if is_ours:
      logging.info("removing %s, whose process is gone", built)
      _delete(built)
      lock.unlink(missing_ok=True)


def remove_damaged(
  generations_dir: epath.PathLike, steps: Collection[int] | None = None
) -> list[int]:
  """Removes generations whose files differ from their manifest.

  It reads all bytes of the given steps, or of all. A sidecar calls it when it
  starts, so that a restart repairs any damage, and for damage that readers
  report. A generation that was published again meanwhile stays. Returns the
  steps that were removed.
  """
  removed = []
  for step in layout.published_steps(generations_dir):
    if steps is not None and step not in steps:
      continue
    path = layout.path_of(generations_dir, step)
    verified = _manifest_bytes(path)
    try:
      manifests.verify(path, manifests.read(path))
    except manifests.DamagedGenerationError as error:
      if _remove(path, only_if=verified):
        logging.warning("%s: it is removed", error)
        removed.append(step)
    except manifests.GenerationError as error:
      # A newer program may have written it.
      logging.warning("%s", error)
  return removed


def remove(generations_dir: epath.PathLike, steps: Collection[int]) -> None:
  """Removes the generations of these steps."""
  for step in steps:
    _remove(layout.path_of(generations_dir, step))


def _remove(path: epath.Path, *, only_if: bytes | None = None) -> bool:
  """Hides a generation from readers at once, and then deletes its files.

  With `only_if`, its manifest must be that text. Returns whether it is removed.
  """

  def is_other() -> bool:
    return only_if is not None and _manifest_bytes(path) != only_if

  if remote.is_remote(path):
    if is_other():
      return False
    (path / layout.MANIFEST).unlink(missing_ok=True)
    path.rmtree(missing_ok=True)
    return True
  with locked(Path(path).parent / layout.COMMIT_LOCK):
    trash = None if is_other() else _rename_to_trash(Path(path))
  _delete(trash)
  return trash is not None


def _manifest_bytes(path: epath.Path) -> bytes:
  """Returns the bytes of a manifest; empty where there is none."""
  try:
    return (path / layout.MANIFEST).read_bytes()
  except (FileNotFoundError, NotADirectoryError):
    return b""


def hide_and_delete(directory: Path) -> None:
  """Hides a directory from all processes by a rename, and then deletes it."""
  _delete(_rename_to_trash(directory))


def _rename_to_trash(path: Path) -> Path | None:
  """Renames a directory for deletion; returns None if it was gone."""
  name = f"{layout.TRASH}{path.name.lstrip('.')}-{secrets.token_hex(4)}"
  try:
    return path.rename(path.with_name(name))
  except FileNotFoundError:
    return None


def _delete(trash: Path | None) -> None:
  if trash is not None:
    shutil.rmtree(trash, ignore_errors=True)
