"""Chooses the snapshot that each step of a run searches.

All processes search the same snapshot in a step. The hosts agree on it while
the devices compute the step before (`realm_jax/training/decisions.py`).
"""

import dataclasses
import functools
import time
from collections.abc import Callable

from absl import logging
from etils import epath

from realm_jax.indexes.exact import ExactIndex
from realm_jax.indexes.protocol import (
  RetrievalUnavailableError,
  WaitPreemptedError,
)
from realm_jax.snapshots.loading import Snapshot, load_snapshot
from realm_jax.snapshots.manifest import (
  DamagedSnapshotError,
  SnapshotError,
)
from realm_jax.snapshots.store import FOLDER, SnapshotStore
from realm_jax.snapshots.watcher import SnapshotWatcher
from realm_jax.training.block_arrays import SearchedBlocks
from realm_jax.training.compiled_steps import RunSetup
from realm_jax.training.config import RefreshConfig
from realm_jax.training.decisions import Decisions
from realm_jax.training.goodput import lost_to

_REMINDER_SECONDS = 30.0
_POLL_SECONDS = 1.0
# A run that stopped because its index was stale waits this long, when it is
# resumed, for a fresher snapshot.
_FRESHER_SECONDS = 600.0
# By default, an index is stale once ten refreshes have been missed.
_REFRESHES_UNTIL_STALE = 10


class IndexSchedule:
  """Chooses the snapshot of each step.

  Snapshots are `every_steps` apart. There may be others, such as one from the
  checkpoint that a preempted run saved; they are used unless the configuration
  sets the distance.

  Args:
    load: Function that verifies and loads the snapshot of a step. It raises
      a `SnapshotError` if the snapshot cannot be used.
    config: How the run follows the index builder.
    num_searched: Number of blocks that each query searches for.
  """

  def __init__(
    self,
    load: Callable[[int], Snapshot],
    config: RefreshConfig,
    *,
    model_dir: epath.PathLike,
    num_searched: int,
    every_steps: int,
    decisions: Decisions,
    watch: Callable[..., SnapshotWatcher] = SnapshotWatcher,
  ):
    self._builder = (
      f"`python -m realm_jax.build_index --model_dir={model_dir}"
      + (" --gin.MODE=every`" if config.wait_for_snapshots else "`")
    )
    self._load = load
    self._config = config
    swaps, waits = config.swap_snapshots, config.wait_for_snapshots
    self._takes_newest = swaps and not waits
    self._num_searched = num_searched
    self._every = every_steps
    limit = config.max_staleness_steps
    # With 0 there is no limit.
    self._max_staleness_steps = (
      _REFRESHES_UNTIL_STALE * every_steps if limit is None else limit
    )
    self._decisions = decisions
    self._loop = decisions.loop
    self._current: Snapshot | None = None
    self._warned_at: int | None = None
    # Snapshot that this process last reported as loaded.
    self._offered: Snapshot | None = None
    follow = "none"
    # The other processes load what process 0 offers.
    if swaps and self._loop.is_leader:
      follow = "next" if waits else "newest"
    self._watcher = watch(
      epath.Path(model_dir) / FOLDER,
      self._load_checked,
      follow=follow,
      every=every_steps if waits else config.refresh_every_steps or 1,
      process=self._loop.index,
    )

  def close(self) -> None:
    """Ends the watcher, after any load in progress."""
    self._watcher.close()

  @property
  def current(self) -> Snapshot:
    """Snapshot in use, from the first call of `at` on."""
    assert self._current is not None
    return self._current

  def at(
    self,
    step: int,
    *,
    recorded: int | None = None,
    agreed: Snapshot | None = None,
  ) -> Snapshot:
    """Returns the snapshot of a step. Call it in the order of the steps.

    Args:
      recorded: Snapshot that a checkpoint recorded for this step, if any.
      agreed: Later snapshot that every process has loaded, if any.

    Raises:
      WaitPreemptedError: The run was preempted before the snapshot was
        published.
      RetrievalUnavailableError: The snapshot was not published in time, or it
        is too old and the run is configured to fail.
      SnapshotError: The snapshot is damaged, for another corpus, or too small.
    """
    if self._current is None:
      self._start(step, recorded)
    elif recorded is not None:
      self._swap_to(recorded, step)
    elif self._config.swap_snapshots:
      if self._takes_newest:
        self._swap(agreed, step)
      else:
        self._swap_to(self._due(step), step)
      if self._is_stale(step, self.current):
        self._report_stale(step)
    return self.current

  def was_searched(self, snapshot: Snapshot) -> None:
    """Records that the process survived loading and searching a snapshot."""
    self._watcher.was_searched(snapshot.step)

  def offer(self) -> tuple[Snapshot | None, int | None]:
    """Returns the snapshot to swap in next, for the exchange of the processes.

    The first value is the snapshot that this process has loaded and could swap
    in; the second is the step of a snapshot that process 0 offered and this
    process cannot use. Either may be None. One thread calls this, once a step.

    Process 0 offers the newest snapshot that it has loaded, and repeats the
    offer until all processes have loaded it or one cannot. If it moved on to
    newer ones, a process that loads slowly would never catch up. The other
    processes load the snapshot that process 0 offers.
    """
    last, refused = self._decisions.last, None
    if not self._config.swap_snapshots:
      return None, None
    if self._loop.is_leader:
      if last is not None and last.refused:
        assert last.load is not None
        logging.warning("a process cannot use snapshot %d", last.load)
        error = DamagedSnapshotError("another process cannot use it")
        self._watcher.reject(last.load, error)
        self._offered = None
      if self._offered is None or self._offered.step <= self.current.step:
        self._offered = self._watcher.newest()
    else:
      self._offered = None
      if last is not None and (step := last.load) is not None:
        self._offered = self._watcher.request(step)
        refused = step if self._watcher.cannot_use(step) else None
    if self._offered is None or self._offered.step <= self.current.step:
      self._offered = None
    return self._offered, refused

  def _start(self, step: int, recorded: int | None) -> None:
    """Sets the first snapshot of a new or resumed run."""
    due = self._due(step) if self._config.wait_for_snapshots else 0
    first = due if recorded is None else recorded
    self._use(self._on_all(lambda: self._wait_for(first, or_later=True)))
    may_fail = self._takes_newest and self._config.on_stale == "fail"
    if may_fail and self._is_stale(step, self.current):
      # A run that stopped because its index was stale would stop again.
      self._swap(self._on_all(lambda: self._wait_for_fresher(step)), step)

  def _load_checked(self, step: int) -> Snapshot:
    """Loads a snapshot, and checks that it has enough blocks for a search."""
    snapshot = self._load(step)
    if snapshot.num_blocks < self._num_searched:
      raise SnapshotError(
        f"snapshot {step} has {snapshot.num_blocks} blocks since version "
        f"{snapshot.corpus.version} of the corpus, and every query of this "
        f"run searches for {self._num_searched}: add blocks, or start a run "
        "with fewer (NUM_CANDIDATES or NUM_SEARCHED)"
      )
    return snapshot

  def _on_all(self, find: Callable[[], Snapshot]) -> Snapshot:
    """Returns the snapshot that process 0 finds, loaded on all processes."""
    if self._loop.count == 1:
      return find()
    step = self._loop.on_process_0("which snapshot", lambda: find().step)
    return self._loop.on_all_processes(
      f"snapshot {step}", lambda: self._wait_for(step)
    )

  def _use(self, snapshot: Snapshot) -> None:
    self._current = snapshot
    self._watcher.in_use(snapshot.step)

  def _swap_to(self, snapshot: int, step: int) -> None:
    """Switches to a snapshot at a step, once all processes have loaded it."""
    if snapshot > self.current.step:
      self._swap(self._on_all(lambda: self._wait_for(snapshot)), step)

  def _swap(self, snapshot: Snapshot | None, step: int) -> None:
    """Switches to a snapshot at a step, if it is later than the current one."""
    if snapshot is None or snapshot.step <= self.current.step:
      return
    logging.info(
      "snapshot %d replaces %d at step %d",
      *(snapshot.step, self.current.step, step),
    )
    self._use(snapshot)

  def _due(self, step: int) -> int:
    """Returns the snapshot that a run with `wait_for_snapshots` searches."""
    return max(0, (step - self._config.lag_steps) // self._every * self._every)

  def _poll(
    self, look: Callable[[], Snapshot | None], awaited: str, *, seconds: float
  ) -> Snapshot | None:
    """Looks until there is a snapshot; returns None once the time is up.

    Raises:
      WaitPreemptedError: The run was preempted meanwhile.
    """
    give_up_at = time.monotonic() + seconds
    remind_at = 0.0
    while not self._decisions.stop_requested():
      if (snapshot := look()) is not None:
        return snapshot
      now = time.monotonic()
      if now > give_up_at:
        return None
      if now >= remind_at:
        remind_at = now + _REMINDER_SECONDS
        logging.info(
          "waiting for %s, which %s publishes", awaited, self._builder
        )
    raise WaitPreemptedError

  def _wait_for(self, step: int, *, or_later: bool = False) -> Snapshot:
    """Waits for a snapshot. With `or_later`, a later one may replace it.

    A later one is used if the snapshot is gone or damaged: its checkpoint may
    be gone as well, and then nothing rebuilds it. This needs a configuration
    that swaps in the newest snapshot, and happens only when a run starts.
    """
    may_be_later = or_later and self._takes_newest

    def look() -> Snapshot | None:
      try:
        return self._watcher.wait_for(step, timeout=_POLL_SECONDS)
      except TimeoutError:
        pass
      except DamagedSnapshotError:
        if not self._config.swap_snapshots:
          raise
        # The watcher has reported it, so that the index builder rebuilds it.
        time.sleep(_POLL_SECONDS)
      later = self._watcher.newest() if may_be_later else None
      if later is None or later.step <= step:
        return None
      logging.warning(
        "snapshot %d is gone or damaged: continuing with snapshot %d",
        *(step, later.step),
      )
      return later

    seconds = self._config.timeout_seconds
    with lost_to("wait"):
      snapshot = self._poll(look, f"snapshot {step}", seconds=seconds)
    if snapshot is None:
      raise RetrievalUnavailableError(
        f"snapshot {step} was not published within {seconds:.0f} s; is "
        f"{self._builder} running?"
      )
    return snapshot

  def _wait_for_fresher(self, step: int) -> Snapshot:
    """Waits for a snapshot that is not stale, or returns the current one."""

    def look() -> Snapshot | None:
      newest = self._watcher.newest()
      if newest is not None and newest.step > self.current.step:
        if not self._is_stale(step, newest):
          return newest
        # Using it frees the memory for the next one, and it is fresher.
        self._use(newest)
      time.sleep(_POLL_SECONDS)
      return None

    awaited = f"a snapshot that is not too old for step {step}"
    return self._poll(look, awaited, seconds=_FRESHER_SECONDS) or self.current

  def _is_stale(self, step: int, snapshot: Snapshot) -> bool:
    return 0 < self._max_staleness_steps < step - snapshot.oldest_step

  def _report_stale(self, step: int) -> None:
    limit = self._max_staleness_steps
    message = (
      f"the oldest vector of snapshot {self.current.step} is "
      f"{step - self.current.oldest_step} steps old at step {step}, above "
      f"MAX_STALENESS_STEPS={limit}; is the index builder alive, and does it "
      "refresh every block in time?"
    )
    if self._config.on_stale == "fail":
      raise RetrievalUnavailableError(message)
    if self._warned_at is None or step - self._warned_at >= limit:
      self._warned_at = step
      logging.warning("%s", message)


@dataclasses.dataclass(frozen=True)
class DeviceSnapshot(Snapshot):
  """A snapshot with an exact index, and its arrays for a step's own search."""

  searched: SearchedBlocks


def open_schedule(setup: RunSetup, decisions: Decisions) -> IndexSchedule:
  """Opens the schedule of a run's snapshots, which loads them.

  If the step does its own retrieval, consecutive snapshots of one corpus
  version share the blocks' tokens on the devices.
  """
  config, retrieval = setup.config, setup.config.stage.retrieval
  assert retrieval is not None
  store = SnapshotStore(epath.Path(config.model_dir) / FOLDER)
  load: Callable[[int], Snapshot] = functools.partial(
    load_snapshot,
    store.directory,
    corpus=setup.corpus,
    mesh=setup.mesh,
    beside_training=True,
    reads_vectors=retrieval.reads == "vectors",
  )
  last: DeviceSnapshot | None = None

  def load_on_devices(step: int) -> DeviceSnapshot:
    nonlocal last
    kind = store.manifest(step).index_kind
    if kind != ExactIndex.kind:
      raise SnapshotError(
        f"{store.path(step)} has an index of the kind {kind!r}, and "
        "RETRIEVE_ON_DEVICE = True searches an exact one alone: publish "
        "snapshots with INDEX = %EXACT, or set RETRIEVE_ON_DEVICE = False"
      )
    snapshot = load(step)
    if (
      last is not None
      and last.corpus.fingerprint == snapshot.corpus.fingerprint
    ):
      blocks = last.searched.blocks
    else:
      blocks = setup.load_blocks(snapshot.corpus)
    exact = snapshot.index
    assert isinstance(exact, ExactIndex)
    searched = SearchedBlocks(
      {} if retrieval.current_queries else snapshot.query_params,
      exact.vectors,
      exact.count,
      blocks,
      exact.plan(setup.num_searched, num_queries=config.data.batch_size),
    )
    last = DeviceSnapshot(**vars(snapshot), searched=searched)
    return last

  return IndexSchedule(
    load_on_devices if config.retrieve_on_device else load,
    config.refresh,
    model_dir=config.model_dir,
    num_searched=setup.num_searched,
    every_steps=config.refresh_every_steps,
    decisions=decisions,
  )
