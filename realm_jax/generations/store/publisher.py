"""Publication: a generation appears whole, or not at all.

Locally it is written aside, made durable, and renamed. An object store has
no rename; there it is written to a folder of its own and the manifest, which
names that folder, is the commit. Other such folders, of a builder that was
killed or of what was replaced, stay until the generation is pruned: whether one
is being written or read there cannot be told.
"""

import contextlib
import dataclasses
import errno
import fcntl
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from absl import logging
from etils import epath

from realm_jax.generations.build.shared_work import sync
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.leases import leased_steps
from realm_jax.generations.store.manifest import (
  DamagedFileError,
  DamagedGenerationError,
  GenerationError,
  Manifest,
)

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Younger leftovers may belong to a builder that has not locked them yet.
_LEFTOVER_SECONDS = 60.0
# A file beside the directory: not every file system locks directories.
_LOCK = ".lock"


class DiskFullError(ValueError):
  """A generation for which there is no room."""


@contextlib.contextmanager
def room_for(generations_dir: epath.PathLike, step: int) -> Iterator[None]:
  """Says that the disk is full in the words of a person.

  Raises:
    DiskFullError: there is no room; nothing that is published has changed.
  """
  try:
    yield
  except OSError as error:
    if error.errno not in _DISK_FULL:
      raise
    raise DiskFullError(
      f"no room for generation {step} in {generations_dir} ({error.strerror}); "
      "free some space or keep fewer generations. Those published are untouched"
    ) from error


def publish(
  generations_dir: epath.PathLike,
  step: int,
  write: Callable[[Path], Manifest],
  *,
  replaces: Callable[[Manifest], bool] = lambda manifest: False,
  atomic_rename: bool | None = None,
) -> bool:
  """Publishes the generation of a checkpoint step.

  Args:
    generations_dir: where generations lie; local or on an object store.
    step: the checkpoint's.
    write: fills an empty local directory with everything but the manifest,
      and returns the manifest; `files` need not be there, and those that are
      are held against what was written.
    replaces: whether a valid generation of this step, published earlier or by
      another builder meanwhile, should give way. A damaged one always does.
    atomic_rename: whether the directory's file system can rename a folder;
      None asks its path.

  Returns:
    False where another builder was first; this one's work is discarded.

  Raises:
    DiskFullError: there is no room; nothing has changed.
    DamagedFileError: a file is not what `write` says.
  """
  directory = epath.Path(generations_dir)
  if atomic_rename is None:
    atomic_rename = not layout.is_remote(directory)
  with room_for(directory, step):
    directory.mkdir(parents=True, exist_ok=True)
    if not atomic_rename:
      return _publish_by_manifest(directory, step, write, replaces)
    remove_leftovers(directory)
    with _building(Path(directory), step) as built:
      _finish(built, write(built))
      return _commit(built, layout.path_of(directory, step), replaces)


def _finish(built: Path, manifest: Manifest) -> Manifest:
  """Adds the manifest, and makes everything durable."""
  paths = sorted(
    str(path.relative_to(built)) for path in built.rglob("*") if path.is_file()
  )
  for path in paths:
    sync(built / path)
  files = manifests.records_of(built, paths)
  for file in manifest.files:
    if file not in files:
      raise DamagedFileError(file.path)
  manifest = dataclasses.replace(
    manifest,
    files=files,
    created=manifests.now(),
  )
  (built / layout.MANIFEST).write_text(manifest.to_json())
  sync(built / layout.MANIFEST)
  for path in (built, *built.rglob("*")):
    if path.is_dir():
      sync(path)
  return manifest


def _commit(
  built: Path, published: epath.Path, replaces: Callable[[Manifest], bool]
) -> bool:
  """Renames into place, and what was there before aside.

  Between the two there is none for a moment; `remove_leftovers` puts back what
  a builder that died then has set aside.
  """
  target = Path(published)
  aside = target.with_name(
    f"{layout.REPLACING}{target.name}-{secrets.token_hex(4)}"
  )
  with _committing(target.parent):
    if replaced := target.exists():
      if stands(published, replaces):
        return False
      os.rename(target, aside)
    try:
      os.rename(built, target)
    except OSError:
      if replaced:
        os.rename(aside, target)
      raise
    sync(target.parent)
    trash = _set_aside(aside) if replaced else None
  _empty(trash)
  return True


def stands(published: epath.Path, replaces: Callable[[Manifest], bool]) -> bool:
  """Whether what is published there is sound and should stay."""
  try:
    manifest = manifests.read(published)
    manifests.verify(published, manifest, checksums=False)
  except GenerationError as error:
    logging.warning("%s; it is replaced", error)
    return False
  return not replaces(manifest)


def _publish_by_manifest(
  directory: epath.Path,
  step: int,
  write: Callable[[Path], Manifest],
  replaces: Callable[[Manifest], bool],
) -> bool:
  published = layout.path_of(directory, step)
  with tempfile.TemporaryDirectory(prefix=layout.BUILDING) as scratch:
    built = Path(scratch)
    manifest = _finish(built, write(built))
    if (published / layout.MANIFEST).exists() and stands(published, replaces):
      return False
    folder = f"build-{secrets.token_hex(6)}"
    for file in manifest.files:
      target = published / folder / file.path
      target.parent.mkdir(parents=True, exist_ok=True)
      epath.Path(built / file.path).copy(target)
    manifest = dataclasses.replace(manifest, folder=folder)
    (published / layout.MANIFEST).write_text(manifest.to_json())
  return True


@contextlib.contextmanager
def _building(directory: Path, step: int) -> Iterator[Path]:
  """A directory of this process's own, locked for as long as it lives."""
  name = f"{layout.BUILDING}{step:08d}-{os.getpid()}-{secrets.token_hex(4)}"
  built, locked = directory / name, directory / f"{name}{_LOCK}"
  lock = os.open(locked, os.O_RDWR | os.O_CREAT, 0o666)
  try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    built.mkdir()
    yield built
  finally:
    shutil.rmtree(built, ignore_errors=True)
    locked.unlink(missing_ok=True)
    os.close(lock)


@contextlib.contextmanager
def _committing(directory: Path) -> Iterator[None]:
  """Keeps other builders from committing; the lock dies with the process."""
  lock = os.open(directory / ".commit.lock", os.O_RDWR | os.O_CREAT)
  try:
    fcntl.flock(lock, fcntl.LOCK_EX)
    yield
  finally:
    os.close(lock)


def remove_leftovers(generations_dir: epath.PathLike) -> None:
  """Ends what builders left that died while building, replacing or removing.

  On an object store nothing is: whether a folder there is being written cannot
  be told.
  """
  if layout.is_remote(generations_dir):
    return
  directory = Path(generations_dir)
  if any(directory.glob(f"{layout.REPLACING}*")):
    with _committing(directory):
      for path in directory.glob(f"{layout.REPLACING}*"):
        name = path.name.removeprefix(layout.REPLACING).partition("-")[0]
        if (directory / name).exists():
          _set_aside(path)
        else:
          logging.warning("putting generation %d back", int(name))
          path.rename(directory / name)
  for path in directory.glob(f"{layout.REMOVING}*"):
    shutil.rmtree(path, ignore_errors=True)
  for path in directory.glob(f"{layout.BUILDING}*"):
    built = directory / path.name.removesuffix(_LOCK)
    locked = directory / f"{built.name}{_LOCK}"
    try:
      if time.time() - path.stat().st_mtime < _LEFTOVER_SECONDS:
        continue
    except FileNotFoundError:
      continue
    lock = os.open(locked, os.O_RDWR | os.O_CREAT, 0o666)
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      continue  # Its builder lives.
    else:
      logging.info("removing %s, whose builder is gone", built)
      shutil.rmtree(built, ignore_errors=True)
      locked.unlink(missing_ok=True)
    finally:
      os.close(lock)


def remove_damaged(
  generations_dir: epath.PathLike, steps: Collection[int] | None = None
) -> list[int]:
  """Removes generations whose files are not what their manifest says.

  A builder calls it when it starts, so that starting again mends what a disk
  or a hand has spoilt, and for what readers refuse. It reads every byte. What
  another builder has made again meanwhile stays.

  Args:
    generations_dir: where generations lie.
    steps: which to look at; None is all.

  Returns:
    The steps removed.
  """
  removed = []
  for step in layout.published_steps(generations_dir):
    if steps is not None and step not in steps:
      continue
    path = layout.path_of(generations_dir, step)
    looked_at = _manifest_bytes(path)
    try:
      manifests.verify(path, manifests.read(path))
    except DamagedGenerationError as error:
      if _remove(path, if_still=looked_at):
        logging.warning("%s: it is removed", error)
        removed.append(step)
    except GenerationError as error:
      logging.warning("%s", error)  # It may be a newer program's.
  return removed


def prune(
  generations_dir: epath.PathLike,
  *,
  keep: int,
  pinned: Collection[int] = (),
) -> list[int]:
  """Removes old generations, but none that is leased or pinned.

  Args:
    generations_dir: where generations lie.
    keep: how many of the latest stay, at least 1.
    pinned: steps that stay whatever their age, such as those that retained
      checkpoints name.

  Returns:
    The steps removed.
  """
  steps = to_prune(generations_dir, keep=keep, pinned=pinned)
  remove(generations_dir, steps)
  return steps


def to_prune(
  generations_dir: epath.PathLike, *, keep: int, pinned: Collection[int] = ()
) -> list[int]:
  """The steps that `prune` would remove."""
  if keep < 1:
    raise ValueError(f"keep={keep}; want at least the newest generation, 1")
  old = layout.published_steps(generations_dir)[:-keep]
  stay = set(pinned) | leased_steps(generations_dir) if old else set()
  return [step for step in old if step not in stay]


def remove(generations_dir: epath.PathLike, steps: Collection[int]) -> None:
  """Removes the generations of these steps."""
  for step in steps:
    _remove(layout.path_of(generations_dir, step))


def _remove(path: epath.Path, *, if_still: bytes | None = None) -> bool:
  """Removes a generation for readers at once, and from the disk after.

  Args:
    path: the generation's.
    if_still: the manifest that it must have; None is any.

  Returns:
    Whether it was there, and was removed.
  """
  if layout.is_remote(path):
    if if_still is not None and _manifest_bytes(path) != if_still:
      return False
    (path / layout.MANIFEST).unlink(missing_ok=True)
    path.rmtree(missing_ok=True)
    return True
  with _committing(Path(path).parent):
    if if_still is not None and _manifest_bytes(path) != if_still:
      return False
    trash = _set_aside(Path(path))
  _empty(trash)
  return trash is not None


def _manifest_bytes(path: epath.Path) -> bytes:
  """A manifest as it lies there; nothing where there is none."""
  try:
    return (path / layout.MANIFEST).read_bytes()
  except (FileNotFoundError, NotADirectoryError):
    return b""


def _set_aside(path: Path) -> Path | None:
  """Takes a folder's name from it; None where there is no such folder."""
  trash = path.with_name(
    f"{layout.REMOVING}{path.name.lstrip('.')}-{secrets.token_hex(4)}"
  )
  try:
    return path.rename(trash)
  except FileNotFoundError:
    return None  # Another builder removed it.


def _empty(trash: Path | None) -> None:
  if trash is not None:
    shutil.rmtree(trash, ignore_errors=True)
