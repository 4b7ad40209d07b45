"""The index builder: follows a run's checkpoints and publishes snapshots.

It shares nothing with the trainer but files; either may be killed, restarted or
moved to another host. The processes of one builder, each with its own devices,
start together, share the work on a snapshot, and stop together.
"""

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from absl import logging
from etils import epath

from realm_jax.checkpoints.store import (
  CheckpointError,
  CheckpointStore,
  UnreadableCheckpointError,
)
from realm_jax.console import stop_on_signal
from realm_jax.corpus import CorpusError
from realm_jax.corpus.store import Corpus
from realm_jax.errors import RealmError
from realm_jax.indexes.bm25 import Bm25Config
from realm_jax.indexes.exact import ExactConfig
from realm_jax.indexes.faiss import FaissConfig
from realm_jax.indexes.hybrid import HybridConfig
from realm_jax.indexes.protocol import IndexConfig, RecallError, config_from
from realm_jax.indexes.random import RandomConfig
from realm_jax.indexes.scann import ScannConfig
from realm_jax.indexes.symphonyqg import SymphonyQgConfig
from realm_jax.models.parameters import Params
from realm_jax.partitioning.agreement import Agreement
from realm_jax.settings import (
  NonNegativeInt,
  PositiveFloat,
  PositiveInt,
  require_valid,
)
from realm_jax.snapshots.build import (
  CompiledTowers,
  KnownVectors,
  SnapshotConfig,
  build_snapshot,
  checkpoint_vectors,
)
from realm_jax.snapshots.loading import load_snapshot
from realm_jax.snapshots.manifest import SnapshotError
from realm_jax.snapshots.store import SnapshotStore, SnapshotUses, directory_of
from realm_jax.storage.access import require_readable, require_writable
from realm_jax.storage.local_disk import DiskFullError
from realm_jax.storage.paths import is_remote
from realm_jax.storage.sole_process import sole_process
from realm_jax.storage.staging import DamagedFileError

_REMINDER_SECONDS = 60.0
# An unreadable checkpoint may be one that the trainer is removing, and gone at
# the next attempt.
_ATTEMPTS = 5


class PreemptedError(RealmError):
  """The builder got SIGTERM during a build."""


@dataclasses.dataclass(frozen=True)
class IndexBuilderConfig:
  """Settings of the index builder.

  A snapshot is built on the newest corpus version. In the mode `newest`, and
  with `once`, the newest checkpoint's snapshot is rebuilt when the corpus gets
  a newer version. In the mode `every`, a published snapshot keeps its version,
  because a resumed run must find the same snapshot again.

  Attributes:
    mode: Checkpoints to build from: `newest` always takes the newest one;
      `every` skips none, for a trainer that waits for its snapshots.
    refresh_every_steps: Distance in steps of the checkpoints to build from,
      the same as the trainer's `RefreshConfig.refresh_every_steps`. Others are
      skipped, except with `once`. None builds from all.
    once: Whether to return after one snapshot. It is the newest checkpoint's,
      unless the snapshot that this checkpoint uses is gone: then it is that.
    checkpoint_step: The only checkpoint to build from; implies `once`.
    keep_snapshots: Number of newest snapshots to keep, in addition to snapshots
      that checkpoints need.
    poll_seconds: Polling interval for checkpoints; None is 1 s on a disk, and
      10 s in a bucket, where each poll is a request.
    retry_seconds: Time to wait when the disk is full.
    publish_if_better: Whether to skip a checkpoint whose retriever is worse
      than the newest snapshot on held-out feedback.
    feedback_dir: Directory of the feedback log; None is MODEL_DIR/feedback.
  """

  mode: Literal["newest", "every"] = "newest"
  refresh_every_steps: PositiveInt | None = None
  once: bool = False
  checkpoint_step: NonNegativeInt | None = None
  keep_snapshots: PositiveInt = 3
  poll_seconds: PositiveFloat | None = None
  retry_seconds: PositiveFloat = 30.0
  publish_if_better: bool = False
  feedback_dir: epath.PathLike | None = None

  def __post_init__(self) -> None:
    require_valid(self)
    if self.publish_if_better and self.skips_none:
      raise RealmError(
        "--publish_if_better skips checkpoints, and MODE = 'every' is for a "
        "trainer that waits for the snapshot of each; leave one out"
      )

  @property
  def skips_none(self) -> bool:
    """Whether a snapshot is built from each checkpoint."""
    return self.mode == "every" and not self.once


def build_index(
  *,
  model_dir: epath.PathLike,
  corpus_dir: epath.PathLike,
  snapshot: SnapshotConfig,
  builder: IndexBuilderConfig,
  snapshots_dir: epath.PathLike | None = None,
  once: bool = False,
  publish_if_better: bool = False,
  stop: threading.Event | None = None,
) -> list[int]:
  """Builds snapshots of a run's checkpoints, until SIGTERM or a single one.

  The run in `model_dir` need not have checkpoints yet, and the corpus may be
  updated while this runs. `once` and `publish_if_better` turn on the settings
  of these names. The event `stop` ends it; None is an event that SIGTERM sets.
  Returns the published steps.

  Raises:
    DiskFullError: The disk is full, with `once`; otherwise this tries again.
    CheckpointError: A checkpoint does not fit the model, the newest one cannot
      be read, or the checkpoint of `checkpoint_step` is gone. Other unreadable
      checkpoints are skipped.
    ProcessesError: The processes differ, or another one has failed.
    SoleProcessError: Another index builder already builds these snapshots.
    StoreAccessError: A bucket cannot be read or written.
    RecallError: The recall of an index is below its settings' minimum, with
      `once` or in the mode `every`; otherwise the checkpoint is skipped.

  Example:
    >>> retriever = run.config.retriever
    >>> settings = SnapshotConfig(retriever, "exact", query_length=16)
    >>> build_index(
    ...   model_dir="runs/qa", corpus_dir="corpus", snapshots_dir="snapshots",
    ...   snapshot=settings, builder=IndexBuilderConfig(), once=True,
    ... )
    [0]
  """
  once = once or builder.once or builder.checkpoint_step is not None
  poll = builder.poll_seconds or (10.0 if is_remote(model_dir) else 1.0)
  config = dataclasses.replace(
    builder,
    once=once,
    poll_seconds=poll,
    publish_if_better=publish_if_better or builder.publish_if_better,
  )
  agreement = Agreement("builder")
  agreement.require_same(
    {"SnapshotConfig": snapshot, "IndexBuilderConfig": config}
  )
  directory = directory_of(model_dir, snapshots_dir)
  require_readable(model_dir, corpus_dir)
  require_writable(directory)
  with contextlib.ExitStack() as stack:
    stop = agreement.stop_event(stop or stack.enter_context(stop_on_signal()))
    checkpoints = CheckpointStore(model_dir)
    stack.callback(checkpoints.close)
    running = _IndexBuilder(
      config=config,
      snapshot=snapshot,
      corpus=Corpus.open(corpus_dir),
      checkpoints=checkpoints,
      store=SnapshotStore(directory),
      agreement=Agreement("snapshots", while_waiting=stop.is_set),
      stop=stop,
    )

    def take_role() -> None:
      role = sole_process(directory, "builder", advice="stop it first")
      running.check_role = stack.enter_context(role)

    agreement.on_process_0("role", take_role)
    with contextlib.suppress(PreemptedError):
      running.run()
    return running.published


class _Choice(NamedTuple):
  """Next action of all processes: build a snapshot, wait, or end."""

  step: int | None = None
  corpus_version: int = 0
  corpus_fingerprint: str = ""
  ends: bool = False


@dataclasses.dataclass(kw_only=True)
class _IndexBuilder:
  """One process of an index builder.

  Attributes:
    corpus: Corpus; in process 0, the newest version seen so far.
    stop: Event that ends waits.
    check_role: Function that checks, in process 0, the right to publish.
    failed: Errors of the steps that could not be built.
    worse: Steps that are not built because feedback speaks against them.
  """

  config: IndexBuilderConfig
  snapshot: SnapshotConfig
  corpus: Corpus
  checkpoints: CheckpointStore
  store: SnapshotStore
  agreement: Agreement
  stop: threading.Event
  check_role: Callable[[], None] = lambda: None
  towers: CompiledTowers | None = None
  published: list[int] = dataclasses.field(default_factory=list)
  failed: dict[int, list[ValueError]] = dataclasses.field(default_factory=dict)
  worse: set[int] = dataclasses.field(default_factory=set)

  def __post_init__(self) -> None:
    self._uses = SnapshotUses(self.checkpoints)
    # Caches manifests by version.
    self._manifest = functools.lru_cache(
      lambda step, version: self.store.manifest(step)
    )

  def check(self) -> None:
    """Raises an error if the index builder must end."""
    try:
      self.check_role()
    except RealmError:
      # Stops the other processes at once, before their shards are finished.
      self.stop.set()
      raise
    if self.stop.is_set():
      raise PreemptedError

  def run(self) -> None:
    """Builds snapshots until `check` raises; with `once`, a single one."""
    config, agreement, stop = self.config, self.agreement, self.stop
    agreement.on_process_0("damage", self.store.remove_damaged)
    while not (config.once and self.published):
      choice = _Choice(*agreement.on_process_0("choice", self._choose))
      if choice.ends:
        return
      if (step := choice.step) is None:
        stop.wait(config.poll_seconds)
        continue
      try:
        towers, params, known = agreement.on_all_processes(
          "checkpoint", functools.partial(self._restore, choice)
        )
        is_worse = functools.partial(self._is_worse, step, towers, params)
        if agreement.on_process_0("feedback", is_worse):
          self.worse.add(step)
          if config.once:
            return
          continue
        build_snapshot(
          *(towers, step, params, self.store),
          agreement=agreement,
          known=known,
          check=self.check,
        )
        self.published.append(step)
      except (RecallError, CheckpointError) as error:
        logging.error("snapshot %d is not built: %s", step, error)
        self.failed.setdefault(step, []).append(error)
        stop.wait(config.poll_seconds)
      except DiskFullError as error:
        if config.once:
          raise
        logging.error("%s; trying again later", error)
        agreement.on_process_0(
          "room", lambda: self.store.remove_old_files(max_removed=0)
        )
        stop.wait(config.retry_seconds)
      except DamagedFileError as error:
        logging.warning("%s", error)
        # Another host may see a network file system's files a little later.
        stop.wait(config.poll_seconds)
      agreement.on_process_0("removal", self._prune)

  def _restore(
    self, choice: _Choice
  ) -> tuple[CompiledTowers, Params, KnownVectors | None]:
    """Returns the compiled towers, the parameters and any known vectors.

    Raises:
      CheckpointError: The checkpoint has another model or vocabulary, cannot be
        read, or has been removed.
    """
    corpus = self.corpus.at(choice.corpus_version, choice.corpus_fingerprint)
    if self.towers is None or self.towers.corpus is not corpus:
      self.towers = CompiledTowers(self.snapshot, corpus)
    step, checkpoints = choice.step, self.checkpoints
    assert step is not None
    like = {"retriever": self.towers.abstract_params()}
    checkpoints.require_vocabulary(step, corpus.vocab_sha256)
    restored = checkpoints.restore(step, items=("retriever",), like=like)
    known = None
    if self.snapshot.index_config.needs_vectors:
      known = checkpoint_vectors(checkpoints, step, corpus)
    return self.towers, restored["retriever"], known

  def _is_worse(
    self, step: int, towers: CompiledTowers, params: Params
  ) -> bool:
    """Returns whether held-out feedback prefers the snapshot being served."""
    steps = self.store.steps()
    if not (self.config.publish_if_better and steps):
      return False
    # Only builders with `publish_if_better` need this import.
    from realm_jax.feedback import held_out

    try:
      # RandomConfig avoids loading the index, which is not needed.
      served = load_snapshot(
        *(self.store.directory, steps[-1]),
        corpus=self.corpus,
        index=RandomConfig(),
      )
    except SnapshotError as error:
      # Nothing can serve it, so there is nothing to be worse than.
      logging.warning("checkpoint %d is not compared: %s", step, error)
      return False
    model_dir = self.checkpoints.directory.parent
    result = held_out.compare(
      *(self.config.feedback_dir or model_dir / "feedback", served),
      *(towers, params),
      query_length=self.snapshot.query_length,
    )
    if result is None:
      return False
    logging.log(
      logging.WARNING if result.is_worse else logging.INFO,
      "checkpoint %d has a reward of %.4f on %d held-out lists, and snapshot "
      "%d has %.4f (difference %.4f to %.4f)%s",
      *(step, result.new, result.num_lists, served.step, result.served),
      *(*result.interval, ": it is not published" if result.is_worse else ""),
    )
    return result.is_worse

  def _choose(self) -> _Choice:
    """Chooses the next action; raises an error that cannot be skipped."""
    self.check()
    config = self.config
    try:
      self.corpus = self.corpus.newest()
    except CorpusError as error:
      logging.log_every_n_seconds(
        logging.WARNING,
        "staying with version %d of the corpus: %s",
        _REMINDER_SECONDS,
        *(self.corpus.version, error),
      )
    self.store.remove_damaged(marked=True)
    steps = self.checkpoints.steps()
    if (only := config.checkpoint_step) is not None:
      if only not in steps and steps and steps[-1] > only:
        raise CheckpointError(
          f"{self.checkpoints.directory} has no checkpoint of step {only}, and "
          f"its newest is later; choose one of {steps} as CHECKPOINT_STEP"
        )
      steps = [only] if only in steps else []
    distance = 1 if config.once else config.refresh_every_steps or 1
    eligible = [step for step in steps if step % distance == 0]
    newest = eligible[-1:]
    # First, snapshots that a run needs to resume from the newest checkpoint.
    needed = set().union(*self._uses.of(steps[-1:]).values())
    lost = [step for step in steps if step in needed]
    done = self._up_to_date(newest)
    for step in (*lost, *(eligible if config.skips_none else newest)):
      if step in done | self.worse or self._is_skipped(
        step, is_newest=step in newest
      ):
        continue
      version, fingerprint = self.corpus.version, self.corpus.fingerprint
      logging.info(
        "building snapshot %d on version %d of the corpus", step, version
      )
      self.store.remove_drafts(but=step)
      return _Choice(step, version, fingerprint)
    if config.once and steps:
      logging.info("snapshot %d is up to date", steps[-1])
    elif steps:
      message = "waiting for the next checkpoint"
      logging.log_every_n_seconds(logging.INFO, message, 600.0)
    else:
      # A run without checkpoints may be one in another MODEL_DIR.
      logging.log_every_n_seconds(
        logging.INFO,
        "no checkpoint yet in %s; waiting for the first, which `python -m "
        "realm_jax.train` writes to this MODEL_DIR",
        _REMINDER_SECONDS,
        self.checkpoints.directory,
      )
    return _Choice(ends=config.once and bool(steps))

  def _is_skipped(self, step: int, *, is_newest: bool) -> bool:
    """Returns whether a step has failed and is skipped.

    Raises the error of a failed step that may not be skipped.
    """
    if not (errors := self.failed.get(step)):
      return False
    is_unreadable = isinstance(errors[-1], UnreadableCheckpointError)
    if is_unreadable and len(errors) < _ATTEMPTS:
      return False
    # A killed trainer may have left an old checkpoint half removed.
    may_skip = is_unreadable and not is_newest
    if isinstance(errors[-1], RecallError):
      may_skip = not self.config.skips_none
    if self.config.once or not may_skip:
      raise errors[-1]
    return True

  def _prune(self) -> None:
    """Removes snapshots that are no longer needed."""
    try:
      steps = self.store.prunable(
        keep=self.config.keep_snapshots,
        pinned=self._uses.pinned(every=self.config.mode == "every"),
      )
    except SnapshotError as error:
      logging.warning("no snapshot is removed this time: %s", error)
      return
    self.store.remove(steps)
    if steps:
      logging.info("removed snapshots %s", steps)

  def _up_to_date(self, newest: Sequence[int]) -> set[int]:
    """Returns the steps of valid snapshots with these settings.

    The snapshot of the `newest` checkpoint must have the newest corpus version,
    unless the mode is `every`. Others may have any version that still exists.
    """
    index, corpus = self.snapshot.index_config, self.corpus
    steps = set()
    for step, text in self.store.versions().items():
      with contextlib.suppress(SnapshotError):
        manifest = self._manifest(step, text)
        version = manifest.corpus_version, manifest.corpus_fingerprint
        may_be_old = step not in newest or self.config.skips_none
        if (
          manifest.index_kind == index.kind
          # Another version of this program may have had more settings.
          and manifest.index_parameters.items() >= vars(index).items()
          and manifest.dtype == self.snapshot.stored_dtype
          and (
            version[1] == corpus.fingerprint
            or (may_be_old and corpus.has_version(*version))
          )
        ):
          steps.add(step)
    return steps


def index_of_run(
  *,
  model_dir: epath.PathLike,
  scann: ScannConfig,
  exact: ExactConfig,
  faiss: FaissConfig,
  symphonyqg: SymphonyQgConfig,
  bm25: Bm25Config,
  hybrid: HybridConfig,
  random: RandomConfig,
  snapshots_dir: epath.PathLike | None = None,
  index_scores: bool = False,
  retrieve_on_device: bool = False,
) -> IndexConfig:
  """Returns the settings of a run's index.

  The kind is the newest snapshot's, or else the one that the run needs. If the
  kind is not among the arguments, the settings are the newest snapshot's.

  Raises:
    IndexLoadError: The newest snapshot has an index of no known kind.
  """
  store = SnapshotStore(directory_of(model_dir, snapshots_dir))
  if steps := store.steps():
    newest = store.manifest(steps[-1])
    for index in (scann, exact, faiss, symphonyqg, bm25, hybrid, random):
      if index.kind == newest.index_kind:
        return index
    return config_from(newest.index_kind, newest.index_parameters)
  if index_scores:
    return bm25
  return exact if retrieve_on_device else scann
