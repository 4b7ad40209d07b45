"""The snapshots of a run: their paths, publication, use and removal.

snapshots/00000500/manifest.json      written last; names the folder of files
snapshots/00000500/manifest.damaged   a reader's report that files are damaged
snapshots/00000500/manifest.removed   new readers must not start; files go later
snapshots/00000500/manifest.trial-0   process 0 of the trainer is loading it
snapshots/00000500/3f2a…/             files of the snapshot, or of a build
snapshots/builder.lock                the process that builds snapshots

Each build writes its files to a folder of its own. The manifest, which names
that folder, is written last, as one whole file. This works on a disk and on an
object store, which cannot rename. Readers ignore a directory without a valid
manifest.
"""

import contextlib
import dataclasses
import datetime
import functools
import itertools
import re
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from absl import logging
from etils import epath

from realm_jax.checkpoints.store import CheckpointStore, recorded_snapshots
from realm_jax.snapshots.manifest import (
  REMEDY,
  DamagedSnapshotError,
  Manifest,
  SnapshotError,
)
from realm_jax.storage.atomic import atomic_text_file
from realm_jax.storage.local_disk import explain_full_disk, sync_tree
from realm_jax.storage.paths import (
  is_remote,
  list_names,
  read_bytes,
  read_text,
  version_of,
)
from realm_jax.storage.staging import StagedFiles

FOLDER = "snapshots"
MANIFEST = "manifest.json"
# Folder of imported vectors, which cannot be embedded again.
IMPORTED = "imported"
_DAMAGED = "manifest.damaged"
_REMOVED = "manifest.removed"
# Each process of a trainer has such a file while it loads a snapshot. It may be
# killed twice between the start of the load and the first search.
_TRIAL = "manifest.trial-{}"
_MAX_KILLS = 2
# Text of a damage report if the files match their checksums, but searching them
# kills the process.
_KILLS = "kills"
_STEP = re.compile(r"[0-9]{8,}")
# Files of removed snapshots stay this long, for readers on other hosts; and the
# largest number of such snapshots.
_REMOVAL_SECONDS = 86_400.0
_MAX_REMOVED = 3


class SnapshotStore:
  """The snapshots in one directory, local or on an object store.

  Only the builder may publish or remove snapshots. The directory need not exist
  yet.
  """

  def __init__(self, directory: epath.PathLike):
    self.directory = epath.Path(directory)

  def path(self, step: int) -> epath.Path:
    """Returns the directory of a checkpoint step's snapshot."""
    return self.directory / f"{step:08d}"

  def steps(self) -> list[int]:
    """Returns the steps that have a manifest, valid or not, in order."""
    return sorted(self.versions())

  def versions(self, *, after: int = -1) -> dict[int, str]:
    """Returns a version string of each published step, from its manifest.

    Lists the directory, and then makes a request for each step after `after`.
    """
    steps = [step for step in self._all_steps() if step > after]
    versions = {step: self.version(step) for step in steps}
    return {step: version for step, version in versions.items() if version}

  def version(self, step: int) -> str | None:
    """Returns the version of one step, or None if it is not published."""
    return version_of(self.path(step) / MANIFEST)

  def manifest(self, step: int) -> Manifest:
    """Returns the manifest of a step.

    Raises:
      SnapshotError: There is no manifest, or it has another format or step.
      DamagedSnapshotError: The manifest is not valid.
    """
    path = self.path(step) / MANIFEST
    try:
      manifest = Manifest.from_json(read_bytes(path), path)
    except (FileNotFoundError, NotADirectoryError):
      raise SnapshotError(
        f"{path.parent} has no {MANIFEST}, so it is not a snapshot"
      ) from None
    if manifest.step != step:
      raise SnapshotError(
        f"{path.parent} holds the snapshot of step {manifest.step}; remove it"
      )
    return manifest

  def files(
    self, manifest: Manifest, *, low_priority: bool = False
  ) -> StagedFiles:
    """Returns the files of a snapshot, which are verified on first use."""
    return StagedFiles(
      self.path(manifest.step) / manifest.folder,
      manifest.files,
      error=DamagedSnapshotError,
      advice=REMEDY,
      low_priority=low_priority,
    )

  def verify(self, step: int, *, checksums: bool = True) -> Manifest:
    """Compares the size and, if asked, the checksum of every file.

    Raises:
      DamagedSnapshotError: A file differs from the manifest.
      SnapshotError: As for `manifest`.
    """
    manifest = self.manifest(step)
    self.files(manifest).verify(checksums=checksums)
    return manifest

  def disk_full_explained(self, step: int) -> contextlib.ContextDecorator:
    """Turns the error of a full disk into a `DiskFullError` with advice."""
    return explain_full_disk(
      self.path(step),
      advice="free some space or lower KEEP_SNAPSHOTS. Published snapshots "
      "are unchanged",
    )

  def commit(self, manifest: Manifest) -> None:
    """Publishes the files of `manifest.folder`, which are complete.

    They replace any other files of the step.
    """
    published = self.path(manifest.step)
    folder = published / manifest.folder
    if not is_remote(folder):
      sync_tree(Path(folder))
    created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with atomic_text_file(published / MANIFEST) as file:
      file.write(dataclasses.replace(manifest, created=created).to_json())
    for name in (_DAMAGED, _REMOVED):
      (published / name).unlink(missing_ok=True)
    self._remove_folders(manifest.step, but=manifest.folder)

  def mark_damaged(self, step: int, *, kills: bool = False) -> None:
    """Reports damage to the builder; a failure to write is logged.

    `kills` reports files that match their checksums, but whose search kills the
    process.
    """
    path = self.path(step) / _DAMAGED
    with _may_fail(path):
      path.write_text(_KILLS if kills else "")

  def begin_trial(self, step: int, version: str, process: int) -> bool:
    """Records that a process of a trainer begins to load a snapshot.

    If loading or searching it kills the process, the restarted process would
    load it again, forever. So this returns False, and records nothing, if the
    process has been killed twice in trials of this `version` of the snapshot.
    """
    path, kills = self.path(step) / _TRIAL.format(process), 0
    with _may_fail(path):
      with contextlib.suppress(FileNotFoundError, ValueError):
        count, _, tried = read_text(path).partition(" ")
        kills = int(count) if tried == version else 0
      if kills < _MAX_KILLS:
        path.write_text(f"{kills + 1} {version}")
    return kills < _MAX_KILLS

  def end_trial(self, step: int, process: int) -> None:
    """Records that the process survived; a failure to do so is logged."""
    path = self.path(step) / _TRIAL.format(process)
    with _may_fail(path):
      path.unlink(missing_ok=True)

  def remove_damaged(self, *, marked: bool = False) -> list[int]:
    """Removes snapshots whose files differ from their manifest.

    Reads all bytes of all snapshots. With `marked`, it only reads snapshots
    that were reported as damaged or as killing their readers. Imported
    snapshots stay, because they cannot be built again. Returns the removed
    steps.
    """
    removed = []
    for step in self._all_steps():
      names = list_names(self.path(step))
      if marked and _DAMAGED not in names:
        continue
      try:
        if _DAMAGED in names:
          with contextlib.suppress(FileNotFoundError):
            if read_text(self.path(step) / _DAMAGED) == _KILLS:
              raise DamagedSnapshotError(
                f"{self.path(step)} kills processes that search it"
              )
        if MANIFEST in names:
          self.verify(step)
      except DamagedSnapshotError as error:
        if IMPORTED in names:
          logging.error("%s. It was imported: import it again", error)
        else:
          logging.warning("%s: removing it", error)
          (self.path(step) / MANIFEST).unlink(missing_ok=True)
          _rmtree(self.path(step))
          removed.append(step)
      except SnapshotError as error:
        # A newer program may have written it.
        logging.warning("%s", error)
      (self.path(step) / _DAMAGED).unlink(missing_ok=True)
    return removed

  def prunable(self, *, keep: int, pinned: Collection[int] = ()) -> list[int]:
    """Returns the steps that are not pinned or among the newest `keep`."""
    return [step for step in self.steps()[:-keep] if step not in pinned]

  def remove(self, steps: Collection[int]) -> None:
    """Removes manifests now, and the files once nobody can be reading them."""
    for step in steps:
      # If this fails on a full disk, the files look like a draft, and are
      # removed sooner.
      with contextlib.suppress(OSError):
        (self.path(step) / _REMOVED).write_text("")
      (self.path(step) / MANIFEST).unlink(missing_ok=True)
    self.remove_old_files()

  def remove_old_files(self, *, max_removed: int = _MAX_REMOVED) -> None:
    """Removes the files of snapshots that were removed long ago.

    Readers on other hosts may still map or copy the files, so the files of the
    last `max_removed` snapshots stay for a day.
    """
    removed = []
    for step in self._all_steps():
      if {_REMOVED, MANIFEST} & {*list_names(self.path(step))} == {_REMOVED}:
        since = (self.path(step) / _REMOVED).stat().mtime
        removed.append((since, step))
    recently = time.time() - _REMOVAL_SECONDS
    for i, (since, step) in enumerate(sorted(removed, reverse=True)):
      if i >= max_removed or since < recently:
        logging.info("removing the files of snapshot %d", step)
        _rmtree(self.path(step))

  def remove_drafts(self, *, but: int | None = None) -> None:
    """Removes the unfinished builds of all steps but one."""
    for step in set(self._all_steps()) - {but}:
      names = list_names(self.path(step))
      if MANIFEST in names:
        # A newer program's manifest may not be readable here.
        with contextlib.suppress(SnapshotError):
          self._remove_folders(step, but=self.manifest(step).folder)
      elif _REMOVED not in names:
        _rmtree(self.path(step))

  def _all_steps(self) -> list[int]:
    """Returns the steps that have a directory, published or not, in order."""
    names = list_names(self.directory)
    return sorted(int(name) for name in names if _STEP.fullmatch(name))

  def _remove_folders(self, step: int, *, but: str) -> None:
    """Removes everything but a manifest and the folder of its files."""
    for name in list_names(self.path(step)):
      if name != but and not name.lstrip(".").startswith("manifest."):
        logging.info("removing %s", self.path(step) / name)
        _rmtree(self.path(step) / name)


class SnapshotUses:
  """The snapshots that the checkpoints of a run use."""

  def __init__(self, checkpoints: CheckpointStore):
    self._checkpoints = checkpoints
    # The loop item of a checkpoint is read once.
    self._loop_item = functools.cache(checkpoints.loop_item)

  def of(self, steps: Sequence[int] | None = None) -> dict[int, list[int]]:
    """Returns the snapshots by checkpoint, without unreadable checkpoints.

    None means all checkpoints.
    """
    steps = self._checkpoints.steps() if steps is None else steps
    used = {}
    for step in steps:
      # The checkpoint may be unreadable, or removed in the meantime.
      with contextlib.suppress(ValueError, OSError):
        used[step] = recorded_snapshots(self._loop_item(step))
    return used

  def pinned(self, *, every: bool = False) -> set[int]:
    """Returns the snapshots that a run needs when resumed from any checkpoint.

    A run that waits for its snapshots needs the snapshots of all checkpoints.
    With `every`, the run is assumed to wait.

    Raises:
      SnapshotError: There is no checkpoint, or one cannot be read.
    """
    directory, steps = self._checkpoints.directory, self._checkpoints.steps()
    if not steps:
      raise SnapshotError(
        f"{directory} has no checkpoint, so the snapshots that are needed are "
        "unknown; give the MODEL_DIR of the run"
      )
    used = self.of(steps)
    if unread := set(steps) - set(used):
      raise SnapshotError(
        f"checkpoint {min(unread)} of {directory} cannot be read, so the "
        "snapshot that it needs is unknown; remove it, or try again"
      )
    waits = [every or self._loop_item(step).get("lag_steps") for step in steps]
    waiting = itertools.compress(steps, waits)
    return set(itertools.chain(*used.values(), waiting))


def directory_of(
  model_dir: epath.PathLike, snapshots_dir: epath.PathLike | None = None
) -> epath.Path:
  """Returns `snapshots_dir`, which by default is in MODEL_DIR."""
  return epath.Path(snapshots_dir or epath.Path(model_dir) / FOLDER)


def step_of(path: epath.PathLike) -> int | None:
  """Returns the step of a directory that is a published snapshot, or None."""
  path = epath.Path(path)
  is_published = _STEP.fullmatch(path.name) and (path / MANIFEST).exists()
  return int(path.name) if is_published else None


def _rmtree(path: epath.Path) -> None:
  """Removes a file or directory that other processes may also be removing."""
  with _may_fail(path):
    if path.is_dir():
      path.rmtree(missing_ok=True)
    else:
      path.unlink(missing_ok=True)


@contextlib.contextmanager
def _may_fail(path: epath.Path) -> Iterator[None]:
  """Logs a failure to write or remove, and continues."""
  try:
    yield
  except OSError as error:
    logging.warning("%s could not be changed: %s", path, error)
