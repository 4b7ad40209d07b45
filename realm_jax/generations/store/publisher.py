"""Publication: a generation appears complete, or not at all.

The files of a generation are written to a folder with a name of their own, and
the manifest, which names that folder, is written last, as one whole file. This
is the same on a disk and on an object store, which cannot rename. A process
that is killed leaves a folder that no manifest names: what builds the same
generation again continues there, and `remove_drafts` removes the others.
"""

import contextlib
import dataclasses
import datetime
import secrets
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from absl import logging
from etils import epath

from realm_jax.files.json_file import whole_text_file
from realm_jax.files.local_disk.disk_full import explain_full_disk
from realm_jax.files.local_disk.scratch import ScratchDirectory
from realm_jax.files.object_store import listing
from realm_jax.files.object_store.remote import is_remote
from realm_jax.files.whole.durable import sync_tree
from realm_jax.files.whole.whole_directory import upload_directory
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.manifest import Manifest

# Beginning of the names of folders that `publish` writes, alone and at once.
_BUILD = "build-"


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
  generations_dir: epath.PathLike, step: int, write: Callable[[Path], Manifest]
) -> None:
  """Writes all files of a generation and publishes it.

  One that is published for the same step is replaced. The function `write`
  writes all files but the manifest to an empty local directory, and returns the
  manifest.

  Raises:
    DiskFullError: The disk is full; nothing published has changed.
  """
  directory = epath.Path(generations_dir)
  folder = layout.path_of(directory, step) / f"{_BUILD}{secrets.token_hex(6)}"
  with disk_full_explained(directory, step):
    try:
      if is_remote(directory):
        with ScratchDirectory() as scratch:
          manifest = _with_all_files(scratch.path, write(scratch.path))
          upload_directory(scratch.path, folder)
      else:
        folder.mkdir(parents=True)
        manifest = _with_all_files(Path(folder), write(Path(folder)))
      commit(directory, dataclasses.replace(manifest, folder=folder.name))
    except BaseException:
      _rmtree(folder)
      if not listing.names_in(folder.parent):
        _rmtree(folder.parent)
      raise


def _with_all_files(directory: Path, manifest: Manifest) -> Manifest:
  paths = [str(p.relative_to(directory)) for p in _files_below(directory)]
  files = manifests.records_of(directory, sorted(paths))
  return dataclasses.replace(manifest, files=files)


def _files_below(directory: Path) -> Iterator[Path]:
  return (path for path in directory.rglob("*") if path.is_file())


def commit(generations_dir: epath.PathLike, manifest: Manifest) -> None:
  """Publishes the files of `manifest.folder`, all of which are written.

  The folders of the same step that it replaces are removed.
  """
  published = layout.path_of(generations_dir, manifest.step)
  folder = published / manifest.folder
  if not is_remote(folder):
    sync_tree(Path(folder))
  created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
  text = dataclasses.replace(manifest, created=created).to_json()
  with whole_text_file(published / layout.MANIFEST) as file:
    file.write(text)
  _remove_others(published, keep={manifest.folder})


def remove_damaged(
  generations_dir: epath.PathLike, steps: Collection[int] | None = None
) -> list[int]:
  """Removes generations whose files differ from their manifest.

  It reads all bytes of the given steps, or of all. A sidecar calls it when it
  starts, so that a restart repairs any damage, and for damage that readers
  report. Returns the steps that were removed.
  """
  removed = []
  for step in layout.published_steps(generations_dir):
    if steps is not None and step not in steps:
      continue
    path = layout.path_of(generations_dir, step)
    try:
      manifests.verify(path, manifests.read(path))
    except manifests.DamagedGenerationError as error:
      logging.warning("%s: it is removed", error)
      remove(generations_dir, [step])
      removed.append(step)
    except manifests.GenerationError as error:
      # A newer program may have written it.
      logging.warning("%s", error)
  return removed


def remove(generations_dir: epath.PathLike, steps: Collection[int]) -> None:
  """Removes the generations of these steps, their manifests first."""
  for step in steps:
    path = layout.path_of(generations_dir, step)
    (path / layout.MANIFEST).unlink(missing_ok=True)
    _rmtree(path)


def remove_drafts(
  generations_dir: epath.PathLike, is_needed: Callable[[int, str], bool]
) -> None:
  """Removes folders that no manifest names, of steps or builds not needed.

  The function `is_needed` takes a step and the name of a folder. Only the one
  process that builds generations may call this.
  """
  for step in layout.all_steps(generations_dir):
    path = layout.path_of(generations_dir, step)
    keep = {
      name
      for name in _names(path)
      if name.startswith(_BUILD) or is_needed(step, name)
    }
    if (path / layout.MANIFEST).exists():
      # A newer program's manifest may not be readable here.
      with contextlib.suppress(manifests.GenerationError):
        _remove_others(path, keep={manifests.read(path).folder, *keep})
    elif keep:
      _remove_others(path, keep=keep)
    else:
      _rmtree(path)


def _names(published: epath.Path) -> list[str]:
  """Returns what stands beside a manifest: folders, or files of older ones."""
  names = listing.names_in(published)
  return [name for name in names if layout.MANIFEST not in name]


def _remove_others(published: epath.Path, *, keep: Collection[str]) -> None:
  """Removes all but a manifest and the names to keep."""
  if "." in keep:
    return  # The manifest's own files stand beside it.
  for name in _names(published):
    if name not in keep:
      logging.info("removing %s", published / name)
      _rmtree(published / name)


def _rmtree(path: epath.Path) -> None:
  """Removes a file or directory, which others may be removing, too."""
  try:
    if path.is_dir():
      path.rmtree(missing_ok=True)
    else:
      path.unlink(missing_ok=True)
  except OSError as error:
    logging.warning("%s was not removed completely: %s", path, error)
