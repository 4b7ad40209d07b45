"""Which snapshot each step of a run searches.

All processes search the same one in a step. They decide so on the hosts while
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
from realm_jax.training.compiled_steps import RunSetup
from realm_jax.training.config import RefreshConfig
from realm_jax.training.decisions import Decisions
from realm_jax.training.goodput import lost_to
from realm_jax.training.search_in_step import SearchedBlocks, load_blocks

_REMINDER_SECONDS = 30.0
_POLL_SECONDS = 1.0
# How long a run that stopped as stale waits for a fresher snapshot when it is
# resumed.
_FRESHER_SECONDS = 600.0
# An index is stale that no newer one has replaced when it was due so often.
_REFRESHES_UNTIL_STALE = 10


class IndexSchedule:
  """Chooses the snapshot of each step.

  Snapshots are `every_steps` apart. Where the configuration asks for this
  distance, those of steps between are not used; without it they are, such as
  the one of a checkpoint that a preempted run has saved.

  Args:
    load: Function that verifies and loads the snapshot of a step. It raises
      a `SnapshotError` for one that cannot be used.
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
    # What this process has last said that it could swap in.
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
    """Ends the watcher, after a load in progress."""
    self._watcher.close()

  @property
  def current(self) -> Snapshot:
    """Snapshot in use; there is one once a step has asked for it."""
    assert self._current is not None
    return self._current

  def at(
    self,
    step: int,
    *,
    recorded: int | None = None,
    agreed: Snapshot | None = None,
  ) -> Snapshot:
    """Returns the snapshot of a step; steps must be asked for in order.

    Args:
      recorded: Snapshot of this step that a checkpoint names, if any.
      agreed: Later snapshot that every process has loaded, if there is one.

    Raises:
      WaitPreemptedError: The run was preempted before it was published.
      RetrievalUnavailableError: It was not published in time, or it is too old
        and the run is configured to fail.
      SnapshotError: It is damaged, of another corpus, or too small.
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
    """Records that loading and searching a snapshot has killed nothing."""
    self._watcher.was_searched(snapshot.step)

  def offer(self) -> tuple[Snapshot | None, int | None]:
    """Returns what this process tells the others of the next snapshot.

    That is the snapshot that it could swap in, and the step of the offered
    snapshot that it cannot use, if any. One thread asks, once for each step.

    Process 0 offers the newest that it has loaded, and goes on doing so until
    all processes have loaded it or one cannot: a process that is slow to load
    is not overtaken for ever. The others load what process 0 offers.
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
      if last is not None and (wanted := last.load) is not None:
        self._offered = self._watcher.request(wanted)
        refused = wanted if self._watcher.cannot_use(wanted) else None
    if self._offered is None or self._offered.step <= self.current.step:
      self._offered = None
    return self._offered, refused

  def _start(self, step: int, recorded: int | None) -> None:
    """Uses the snapshot that a new or resumed run begins with."""
    due = self._due(step) if self._config.wait_for_snapshots else 0
    first = due if recorded is None else recorded
    self._use(self._on_all(lambda: self._wait_for(first, or_later=True)))
    may_fail = self._takes_newest and self._config.on_stale == "fail"
    if may_fail and self._is_stale(step, self.current):
      # A run that stopped as stale would do so again.
      self._swap(self._on_all(lambda: self._wait_for_fresher(step)), step)

  def _load_checked(self, step: int) -> Snapshot:
    """Loads a snapshot, which must have enough blocks for a search."""
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
    """Returns the snapshot that process 0 finds, once all have loaded it."""
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
    """Uses a snapshot from a step on, once all processes have loaded it."""
    if snapshot > self.current.step:
      self._swap(self._on_all(lambda: self._wait_for(snapshot)), step)

  def _swap(self, snapshot: Snapshot | None, step: int) -> None:
    """Uses a snapshot from a step on, if it is later than the current."""
    if snapshot is None or snapshot.step <= self.current.step:
      return
    logging.info(
      "snapshot %d replaces %d at step %d",
      *(snapshot.step, self.current.step, step),
    )
    self._use(snapshot)

  def _due(self, step: int) -> int:
    """Returns the snapshot that a waiting run searches at a step."""
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
      if (found := look()) is not None:
        return found
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
    """Waits for a snapshot, or takes a later one where it is gone or damaged.

    Its checkpoint may be gone as well, so that nothing would rebuild it. Only a
    run that begins, and that may take the newest, does so.
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
      found = self._poll(look, f"snapshot {step}", seconds=seconds)
    if found is None:
      raise RetrievalUnavailableError(
        f"snapshot {step} was not published within {seconds:.0f} s; is "
        f"{self._builder} running?"
      )
    return found

  def _wait_for_fresher(self, step: int) -> Snapshot:
    """Waits for a snapshot that is not stale; without, the current stays."""

    def look() -> Snapshot | None:
      newest = self._watcher.newest()
      if newest is not None and newest.step > self.current.step:
        if not self._is_stale(step, newest):
          return newest
        # It makes room for the next, and is fresher at least.
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
  """A snapshot with an exact index, and what a step searches of it."""

  searched: SearchedBlocks


def open_schedule(setup: RunSetup, decisions: Decisions) -> IndexSchedule:
  """Opens what follows the snapshots of a run, and loads them.

  Snapshots in a row that a step itself searches, and that are of one corpus
  version, share the tokens of its blocks.
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
    made = load(step)
    if last is not None and last.corpus.fingerprint == made.corpus.fingerprint:
      blocks = last.searched.blocks
    else:
      length = config.data.block_length
      blocks = load_blocks(
        made.corpus,
        block_length=length,
        mesh=setup.mesh,
        reader=setup.text_reader,
      )
    exact = made.index
    assert isinstance(exact, ExactIndex)
    searched = SearchedBlocks(
      {} if retrieval.current_queries else made.query_params,
      exact.vectors,
      exact.count,
      blocks,
      exact.plan(setup.num_searched, num_queries=config.data.batch_size),
    )
    last = DeviceSnapshot(**vars(made), searched=searched)
    return last

  return IndexSchedule(
    load_on_devices if config.retrieve_on_device else load,
    config.refresh,
    model_dir=config.model_dir,
    num_searched=setup.num_searched,
    every_steps=config.refresh_every_steps,
    decisions=decisions,
  )
