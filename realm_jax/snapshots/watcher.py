"""The watcher: finds, verifies and loads snapshots in the background."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Literal

from absl import logging
from etils import epath

from realm_jax.snapshots.loading import Snapshot
from realm_jax.snapshots.manifest import DamagedSnapshotError, SnapshotError
from realm_jax.snapshots.store import SnapshotStore
from realm_jax.storage.local_disk import explain_full_disk
from realm_jax.storage.paths import is_remote

# Polling interval. In a bucket each poll is a request that costs money, so it
# is longer there unless the run is waiting for a snapshot.
_POLL_SECONDS = 1.0
_POLL_SECONDS_IN_BUCKET = 10.0
# An awaited snapshot that was rejected is read again after this time, in case
# the fault was this machine's. A snapshot that another process has loaded may
# be invisible here for as long.
_RETRY_SECONDS = 30.0


class SnapshotWatcher:
  """Loads, in the background, the snapshot that a run will search next.

  Nothing is loaded before the first call of a method. Returned snapshots are
  verified and completely loaded. Calls of a method make a thread poll the
  directory, at most every `poll_seconds`, and only if a snapshot may be wanted;
  the directory need not exist yet. At most one snapshot is in memory besides
  the one in use.

  Args:
    load: Function that loads the snapshot of a step. It raises a SnapshotError
      if the snapshot cannot be used, which is logged once.
    follow: Snapshot to load without a request: the `newest`, the `next` after
      the one in use (for a run that skips none), or `none`.
    every: Distance in steps of the snapshots that are followed; others are
      loaded only on request.
    process: Index of this process, for the record of its trials.
    poll_seconds: Polling interval; None is 1 s on a disk and 10 s in a bucket.
  """

  def __init__(
    self,
    snapshots_dir: epath.PathLike,
    load: Callable[[int], Snapshot],
    *,
    follow: Literal["newest", "next", "none"] = "newest",
    every: int = 1,
    process: int = 0,
    poll_seconds: float | None = None,
  ):
    self._store = SnapshotStore(snapshots_dir)
    self._load = load
    self._follow, self._every = follow, every
    self._process = process
    in_bucket = is_remote(snapshots_dir)
    default = _POLL_SECONDS_IN_BUCKET if in_bucket else _POLL_SECONDS
    self._poll_seconds = poll_seconds or default
    self._wait_seconds = poll_seconds or _POLL_SECONDS
    # Set by callers, and read by the thread.
    self._awaited: int | None = None
    self._in_use: int | None = None
    self._following = False
    # Set by the thread, and read by callers.
    self._loaded: dict[int, Snapshot] = {}
    # Snapshots that cannot be used: version, error, and time of rejection.
    self._rejected: dict[int, tuple[str, SnapshotError, float]] = {}
    # Times since which awaited snapshots have been missing.
    self._missing: dict[int, float] = {}
    # Loaded snapshots that have not been searched yet, and may kill this
    # process.
    self._unproven: set[int] = set()
    self._thread = ThreadPoolExecutor(1, "snapshot watcher")
    self._poll: Future[None] | None = None
    self._next_poll = 0.0

  def newest(self) -> Snapshot | None:
    """Returns the newest loaded snapshot without waiting, or None."""
    self._following = True
    self.poll()
    loaded, rejected = self._loaded, self._rejected
    followed = [s for s in loaded if s % self._every == 0 and s not in rejected]
    return loaded[max(followed)] if followed else None

  def request(self, step: int) -> Snapshot | None:
    """Asks for a snapshot, and returns it if it is already loaded."""
    if step not in self._loaded:
      is_new, self._awaited = self._awaited != step, step
      self.poll(now=is_new)
    return self._loaded.get(step)

  def cannot_use(self, step: int) -> bool:
    """Returns whether a requested snapshot is damaged, unfit or gone."""
    now = time.monotonic()
    is_gone = now - self._missing.get(step, now) > _RETRY_SECONDS
    return step not in self._loaded and (is_gone or step in self._rejected)

  def reject(self, step: int, error: SnapshotError) -> None:
    """Unloads a snapshot, which is not loaded again until it is replaced."""
    version = self._store.version(step) or ""
    self._rejected[step] = version, error, time.monotonic()
    self.poll(now=True)

  def wait_for(self, step: int, *, timeout: float) -> Snapshot:
    """Waits for the snapshot of exactly this step, for `timeout` seconds.

    Raises:
      TimeoutError: The snapshot did not appear in time.
      SnapshotError: The snapshot was published, but cannot be used.
      DamagedSnapshotError: The snapshot is damaged; the index builder may build
        it again.
    """
    self._awaited = step
    end = time.monotonic() + timeout
    is_fresh = False
    try:
      while True:
        is_done = False
        if self._poll is not None:
          wait([self._poll], max(0.0, end - time.monotonic()))
          is_done = self._poll.done()
        if step in self._loaded:
          return self._loaded[step]
        # A poll that began earlier may have rejected a version that has been
        # replaced since.
        if is_fresh and is_done and step in self._rejected:
          _, error, _ = self._rejected[step]
          raise type(error)(str(error))
        if time.monotonic() >= end:
          raise TimeoutError(
            f"snapshot {step} did not appear in {self._store.directory} "
            f"within {timeout:.0f} s; is realm_jax.build_index running?"
          )
        if is_fresh:
          time.sleep(self._wait_seconds)
        self.poll(now=True)
        is_fresh = True
    finally:
      self._awaited = None

  def in_use(self, step: int) -> None:
    """Sets which snapshot the run searches; older ones are unloaded."""
    self._in_use = step
    self._following = True
    self.poll(now=True)

  def was_searched(self, step: int) -> None:
    """Records that the process survived loading and searching a snapshot."""
    if step in self._unproven:
      self._unproven.discard(step)
      # The caller's step does not wait for a request.
      end = self._store.end_trial
      threading.Thread(target=end, args=(step, self._process)).start()

  def poll(self, *, now: bool = False) -> None:
    """Makes the thread look for snapshots; raises the last look's error."""
    if self._poll is not None:
      if not self._poll.done():
        return
      self._poll.result()
    if now or time.monotonic() >= self._next_poll:
      self._next_poll = time.monotonic() + self._poll_seconds
      self._poll = self._thread.submit(self._look)

  def close(self) -> None:
    """Ends the thread, after any load in progress."""
    self._thread.shutdown()
    # The snapshot in use may be the reason why the run ends.
    for step in {*self._loaded} - {self._in_use}:
      self.was_searched(step)

  def _look(self) -> None:
    """Unloads unneeded snapshots, and loads at most one."""
    awaited, in_use, stay = self._awaited, self._in_use, {*self._loaded}
    if awaited in stay:
      self._awaited = awaited = None
    stay -= {*self._rejected}
    if in_use is not None and stay:
      stay &= {in_use, max(stay) if awaited is None else awaited}
    for step in {*self._loaded} - stay:
      self.was_searched(step)
    self._loaded = {step: self._loaded[step] for step in stay}
    try:
      with explain_full_disk(self._store.directory):
        self._load_one(awaited)
    except OSError as error:
      # A temporary failure of the file system must not end a long run.
      logging.log_every_n_seconds(
        logging.WARNING,
        "cannot follow %s: %s",
        _RETRY_SECONDS,
        *(self._store.directory, error),
      )

  def _load_one(self, awaited: int | None) -> None:
    """Loads the first snapshot that is wanted and can be used.

    Makes no request to the storage if none can be wanted. Processes that follow
    no snapshots ask only for the snapshot that they are told to load.
    """
    follow = self._follow if self._following else "none"
    in_use = self._in_use
    if awaited is not None:
      if (version := self._store.version(awaited)) is None:
        self._missing.setdefault(awaited, time.monotonic())
      else:
        self._missing.pop(awaited, None)
        if self._try_load(awaited, version):
          return
    # An awaited snapshot that was rejected does not keep the newest from being
    # loaded.
    newest = max([-1 if in_use is None else in_use, *self._loaded])
    has_next = in_use is not None and newest > in_use
    if follow == "none" or has_next or (follow == "next" and in_use is None):
      return
    published = self._store.versions(after=newest)
    later = sorted(step for step in published if step % self._every == 0)
    for step in reversed(later) if follow == "newest" else later[:1]:
      if self._try_load(step, published[step]):
        return

  def _try_load(self, step: int, version: str) -> bool:
    """Loads a snapshot, unless the same files were rejected before."""
    start = time.monotonic()
    rejected, _, since = self._rejected.get(step, ("", None, 0.0))
    is_again = step == self._awaited and start - since > _RETRY_SECONDS
    if rejected == version and not is_again:
      return False
    kills = not self._store.begin_trial(step, version, self._process)
    try:
      if kills:
        raise DamagedSnapshotError(
          f"the process that loaded or searched {self._store.path(step)} has "
          "been killed twice; let build_index make this snapshot again"
        )
      snapshot = self._load(step)
    except (SnapshotError, OSError) as error:
      if not kills:
        self._store.end_trial(step, self._process)
      if not isinstance(error, SnapshotError):
        raise
      if self._store.version(step) != version:
        return False  # Removed or replaced while its files were read.
      logging.warning("snapshot %d is not used: %s", step, error)
      if isinstance(error, DamagedSnapshotError):
        self._store.mark_damaged(step, kills=kills)
      self._rejected[step] = version, error, time.monotonic()
      return False
    seconds = time.monotonic() - start
    logging.info("snapshot %d is verified and loaded (%.1f s)", step, seconds)
    self._rejected.pop(step, None)
    self._unproven.add(step)
    self._loaded = {**self._loaded, step: snapshot}
    return True
