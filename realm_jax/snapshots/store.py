"""The snapshots of a run: their paths, publication, use and removal.

snapshots/00000500/manifest.json      written last; names the folder of files
snapshots/00000500/manifest.damaged   a reader's report that files are damaged
snapshots/00000500/manifest.removed   since when readers should not begin here
snapshots/00000500/manifest.trial-0   process 0 of the trainer loads it
snapshots/00000500/3f2a…/             its files, or those of a build
snapshots/builder.lock                which process builds snapshots

The files of a snapshot are written to a folder of their own, and the
manifest, which names that folder, is written last, as one whole file. That is
the same on a disk and on an object store, which cannot rename. For a reader, a
directory without a valid manifest is no snapshot.
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
# Folder of vectors that were not embedded here: nothing can make them again.
IMPORTED = "imported"
_DAMAGED = "manifest.damaged"
_REMOVED = "manifest.removed"
# A file for each process of a trainer, and how often it may be killed between
# the beginning of a load and the first search.
_TRIAL = "manifest.trial-{}"
_MAX_KILLS = 2
# What a report of damage says of files that are as they were published.
_KILLS = "kills"
_STEP = re.compile(r"[0-9]{8,}")
# How long a reader on another host may need the files of a snapshot that is
# removed, and how many of such snapshots may take space.
_REMOVAL_SECONDS = 86_400.0
_MAX_REMOVED = 3


class SnapshotStore:
  """The snapshots in one directory, local or on an object store.

  Only the one process that builds may publish or remove. The directory need not
  exist yet.
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
    """Returns a text for each published step that changes with its manifest.

    This lists the directory and then asks for each step later than `after`.
    """
    steps = [step for step in self._all_steps() if step > after]
    versions = {step: self.version(step) for step in steps}
    return {step: version for step, version in versions.items() if version}

  def version(self, step: int) -> str | None:
    """Returns the same text for one step; None where it is not published."""
    return version_of(self.path(step) / MANIFEST)

  def manifest(self, step: int) -> Manifest:
    """Returns the manifest of a step.

    Raises:
      SnapshotError: There is none, or of another format or step.
      DamagedSnapshotError: It is not valid.
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
    """Returns the files of a snapshot, which are verified when asked for."""
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
      SnapshotError: As `manifest`; DamagedSnapshotError for such a file.
    """
    manifest = self.manifest(step)
    self.files(manifest).verify(checksums=checksums)
    return manifest

  def disk_full_explained(self, step: int) -> contextlib.ContextDecorator:
    """Turns the error of a full disk into a `DiskFullError` that says more."""
    return explain_full_disk(
      self.path(step),
      advice="free some space or lower KEEP_SNAPSHOTS. Published snapshots "
      "are unchanged",
    )

  def commit(self, manifest: Manifest) -> None:
    """Publishes the files of `manifest.folder`, in place of the step's others.

    All of them are written.
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
    """Reports damage to the process that builds; a failure is logged.

    Files that have their checksums are damaged as well if whoever searches them
    is killed (`kills`).
    """
    path = self.path(step) / _DAMAGED
    with _may_fail(path):
      path.write_text(_KILLS if kills else "")

  def begin_trial(self, step: int, version: str, process: int) -> bool:
    """Records that a process of a trainer begins to load a snapshot.

    Loading and searching it may kill the process, which would load it again
    when it is restarted, for ever. Returns False, and records nothing, if this
    process was killed twice in trials of this `version` of the snapshot.
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
    """Records that a trial has killed nothing; a failure is logged."""
    path = self.path(step) / _TRIAL.format(process)
    with _may_fail(path):
      path.unlink(missing_ok=True)

  def remove_damaged(self, *, marked: bool = False) -> list[int]:
    """Removes snapshots whose files differ from their manifest.

    It reads all bytes of all snapshots or, with `marked`, of those reported
    as damaged. Those that kill are removed as well. Imported ones, which cannot
    be built again, stay. Returns the steps that were removed.
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
                f"{self.path(step)} kills the process that searches it"
              )
        if MANIFEST in names:
          self.verify(step)
      except DamagedSnapshotError as error:
        if IMPORTED in names:
          logging.error("%s. It was imported: import it again", error)
        else:
          logging.warning("%s: it is removed", error)
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
    """Removes manifests now, and the files when nobody reads them any more."""
    for step in steps:
      # On a full disk, the files are taken for a draft's, and go sooner.
      with contextlib.suppress(OSError):
        (self.path(step) / _REMOVED).write_text("")
      (self.path(step) / MANIFEST).unlink(missing_ok=True)
    self.remove_old_files()

  def remove_old_files(self, *, max_removed: int = _MAX_REMOVED) -> None:
    """Removes the files of snapshots that were removed long ago.

    Readers on other hosts may still map the files, or copy them. So those of
    the last `max_removed` snapshots stay for a day.
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
    """Removes what lies beside a manifest and the folder of its files."""
    for name in list_names(self.path(step)):
      if name != but and not name.lstrip(".").startswith("manifest."):
        logging.info("removing %s", self.path(step) / name)
        _rmtree(self.path(step) / name)


class SnapshotUses:
  """What the checkpoints of a run say of the snapshots that they use."""

  def __init__(self, checkpoints: CheckpointStore):
    self._checkpoints = checkpoints
    # The state of the loop at a checkpoint, which is read once.
    self._loop_item = functools.cache(checkpoints.loop_item)

  def of(self, steps: Sequence[int] | None = None) -> dict[int, list[int]]:
    """Returns the snapshots of checkpoints, or all, that can be read."""
    steps = self._checkpoints.steps() if steps is None else steps
    used = {}
    for step in steps:
      # It may be removed meanwhile, or unreadable.
      with contextlib.suppress(ValueError, OSError):
        used[step] = recorded_snapshots(self._loop_item(step))
    return used

  def pinned(self, *, every: bool = False) -> set[int]:
    """Returns the snapshots that a run resumed from any checkpoint needs.

    A run that waits for its snapshots needs those of all its checkpoints.
    With `every`, all checkpoints are taken to be of such a run.

    Raises:
      SnapshotError: There is no checkpoint, or one cannot be read.
    """
    directory, steps = self._checkpoints.directory, self._checkpoints.steps()
    if not steps:
      raise SnapshotError(
        f"{directory} has no checkpoint that says which snapshots are "
        "needed; give the MODEL_DIR of the run"
      )
    used = self.of(steps)
    if unread := set(steps) - set(used):
      raise SnapshotError(
        f"checkpoint {min(unread)} of {directory} does not say which "
        "snapshot it needs, for it cannot be read; remove it, or try again"
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
  """Removes a file or directory, which others may be removing as well."""
  with _may_fail(path):
    if path.is_dir():
      path.rmtree(missing_ok=True)
    else:
      path.unlink(missing_ok=True)


@contextlib.contextmanager
def _may_fail(path: epath.Path) -> Iterator[None]:
  """Logs that something could not be written or removed, and goes on."""
  try:
    yield
  except OSError as error:
    logging.warning("%s could not be changed: %s", path, error)
