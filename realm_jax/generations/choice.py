"""Which generation a sidecar builds next, and which ones are still needed."""

import contextlib
import dataclasses
import json
import time
from collections.abc import Sequence
from typing import Literal, NamedTuple

from absl import logging

from realm_jax.checkpoints.store import (
  CheckpointError,
  CheckpointStore,
  recorded_generation,
)
from realm_jax.corpus import CorpusError
from realm_jax.corpus.store import Corpus
from realm_jax.generations.build import GenerationConfig
from realm_jax.generations.manifest import GenerationError, Manifest
from realm_jax.generations.store import GenerationStore
from realm_jax.indexes.registry import parameters_of
from realm_jax.settings import (
  NonNegativeInt,
  PositiveFloat,
  PositiveInt,
  require_valid,
)

_REMINDER_SECONDS = 30.0
# Longer than it takes to delete the files of a checkpoint.
_REMOVAL_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class SidecarConfig:
  """Settings of the sidecar.

  A generation is built on the newest version of the corpus. In the mode
  `newest`, and with `once`, the newest checkpoint's generation is built again
  when the corpus gets a newer version. In the mode `every` a published
  generation keeps its version, because a run that resumes must find the same
  generation again.

  Attributes:
    mode: Checkpoints to build from: `newest` always takes the newest one;
      `every` skips none, for a trainer that waits for its generations.
    refresh_every_steps: Distance of the checkpoints to build from, in steps;
      others are skipped, but not with `once`. It is the trainer's
      `RefreshConfig.refresh_every_steps`. None builds from all.
    once: Whether to return after one generation: the newest checkpoint's, or
      first the one that this checkpoint uses, if it is gone.
    checkpoint_step: Checkpoint to take with `once` instead of the newest.
    keep_generations: Number of the newest generations that stay. Those that
      checkpoints need stay as well.
    poll_seconds: Time between two looks for checkpoints.
    retry_seconds: Time to wait when the disk is full.
  """

  mode: Literal["newest", "every"] = "newest"
  refresh_every_steps: PositiveInt | None = None
  once: bool = False
  checkpoint_step: NonNegativeInt | None = None
  keep_generations: PositiveInt = 3
  poll_seconds: PositiveFloat = 1.0
  retry_seconds: PositiveFloat = 30.0

  def __post_init__(self) -> None:
    require_valid(self)

  @property
  def skips_none(self) -> bool:
    """Whether a generation is built from each checkpoint."""
    return self.mode == "every" and not self.once


class Choice(NamedTuple):
  """What all processes do next: by default they end, and at step −1 they wait.

  `is_newest` is whether the step is that of the newest checkpoint to build
  from.
  """

  step: int = -1
  corpus_version: int = 0
  corpus_fingerprint: str = ""
  is_newest: bool = False
  ends: bool = True


class Chooser:
  """Chooses in process 0 which generation is built next.

  Attributes:
    skipped: Checkpoints from which no generation can be built.
  """

  def __init__(
    self,
    config: SidecarConfig,
    generation: GenerationConfig,
    corpus: Corpus,
    checkpoints: CheckpointStore,
    store: GenerationStore,
  ):
    self._config = config
    self._generation = generation
    self._corpus = corpus
    self._checkpoints = checkpoints
    self._store = store
    self._distance = 1 if config.once else config.refresh_every_steps or 1
    self._retained = RetainedGenerations(checkpoints)
    self.skipped: set[int] = set()
    self._last_message = ""
    self._say_at = 0.0

  def choose(self) -> Choice:
    """Returns the choice.

    Raises:
      CheckpointError: The checkpoint that is wanted will not come any more.
    """
    self._follow_corpus()
    self._store.repair_marked()
    steps = self._candidate_steps()
    newest = due(steps, distance=self._distance)[-1:]
    step = next_step(
      steps,
      up_to_date=self._up_to_date(newest) | self.skipped,
      needed=self._retained.used_by(steps[-1:]),
      every=self._config.skips_none,
      distance=self._distance,
    )
    if step is None:
      if self._config.once and steps:
        logging.info("generation %d is up to date", steps[-1])
        return Choice()
      self._log_waiting(for_first=not steps)
      return Choice(ends=False)
    logging.info(
      "building generation %d on version %d of the corpus",
      step,
      self._corpus.version,
    )
    self._store.remove_drafts(but=step)
    return Choice(
      step,
      self._corpus.version,
      self._corpus.fingerprint,
      is_newest=step in newest,
      ends=False,
    )

  def prune(self) -> None:
    """Removes generations that nobody needs."""
    try:
      steps = self._store.prunable(
        keep=self._config.keep_generations,
        pinned=self._retained.pinned(every=self._config.mode == "every"),
      )
    except UnknownNeedsError as error:
      logging.warning("no generation is removed this time: %s", error)
      return
    self._store.remove(steps)
    if steps:
      logging.info("removed generations %s", steps)

  def _follow_corpus(self) -> None:
    """Goes on to the newest version, or logs why the corpus has none."""
    try:
      newest = self._corpus.newest()
    except CorpusError as error:
      logging.log_every_n_seconds(
        logging.WARNING,
        "staying with version %d of the corpus: %s",
        _REMINDER_SECONDS,
        self._corpus.version,
        error,
      )
      return
    if newest is not self._corpus:
      logging.info(
        "the corpus has version %d now, with %d blocks",
        newest.version,
        newest.num_blocks,
      )
      self._corpus = newest

  def _candidate_steps(self) -> list[int]:
    """Returns the checkpoints, or only `checkpoint_step` if it is given."""
    steps = self._checkpoints.steps()
    wanted = self._config.checkpoint_step
    if wanted is None:
      return steps
    if wanted not in steps and steps and steps[-1] > wanted:
      raise CheckpointError(
        f"{self._checkpoints.directory} has no checkpoint of step {wanted}, "
        f"and its newest is later; it has {list(steps)}: choose one of them as "
        "CHECKPOINT_STEP"
      )
    return [wanted] if wanted in steps else []

  def _up_to_date(self, newest: Sequence[int]) -> set[int]:
    """Returns the steps of valid generations with these settings.

    That of the `newest` checkpoint must be of the newest version of the corpus,
    unless none is skipped. Others may be of any version that still exists.
    """
    steps = set()
    for step in self._store.steps():
      is_newest = step in newest and not self._config.skips_none
      with contextlib.suppress(GenerationError):
        if self._is_current(
          self._store.manifest(step), any_version=not is_newest
        ):
          steps.add(step)
    return steps

  def _is_current(self, manifest: Manifest, *, any_version: bool) -> bool:
    """Returns whether a generation has these settings and blocks."""
    index, dtype = self._generation.index, self._generation.stored_dtype
    # As a manifest holds them, without tuples.
    parameters = json.loads(json.dumps(parameters_of(index)))
    found = manifest.index_kind, manifest.index_parameters, manifest.dtype
    if found != (index.kind, parameters, dtype):
      return False
    if manifest.corpus_fingerprint == self._corpus.fingerprint:
      return True
    return any_version and self._corpus.has_version(
      manifest.corpus_version, manifest.corpus_fingerprint
    )

  def _log_waiting(self, *, for_first: bool) -> None:
    """Logs what the sidecar waits for: at first, and if that is a run, again.

    A run that has no checkpoint may be one in another MODEL_DIR.
    """
    message = "waiting for the next checkpoint"
    if for_first:
      message = (
        f"no checkpoint yet in {self._checkpoints.directory}; waiting for the "
        "first, which `python -m realm_jax.train` writes to this MODEL_DIR"
      )
    now = time.monotonic()
    if message != self._last_message or (for_first and now >= self._say_at):
      self._say_at = now + _REMINDER_SECONDS
      logging.info("%s", message)
    self._last_message = message


def next_step(
  checkpoints: Sequence[int],
  *,
  up_to_date: set[int],
  needed: set[int],
  every: bool,
  distance: int = 1,
) -> int | None:
  """Returns the checkpoint to build from next; None where none is wanted.

  A run that resumes from the newest checkpoint uses the generations `needed`.
  With `every` no checkpoint is skipped but those between multiples of
  `distance`, which are of no interest otherwise, either.
  """
  lost = [step for step in checkpoints if step in needed]
  wanted = due(checkpoints, distance=distance)
  candidates = [*lost, *(wanted if every else wanted[-1:])]
  return next((step for step in candidates if step not in up_to_date), None)


def due(checkpoints: Sequence[int], *, distance: int) -> list[int]:
  """Returns the checkpoints whose steps are multiples of `distance`."""
  return [step for step in checkpoints if step % distance == 0]


class UnknownNeedsError(ValueError):
  """A run whose checkpoints do not say which generations they need."""


class _Use(NamedTuple):
  generation: int | None
  run_waits: bool


class RetainedGenerations:
  """The generations that the checkpoints of a run need."""

  def __init__(self, checkpoints: CheckpointStore):
    self._checkpoints = checkpoints
    self._uses: dict[int, _Use] = {}

  def used_by(self, steps: Sequence[int]) -> set[int]:
    """Returns the generations in use at checkpoints that can be read."""
    used = {use.generation for use in self._read(steps).values()}
    return {step for step in used if step is not None}

  def users(self) -> dict[int, list[int]]:
    """Returns the checkpoints that use each generation."""
    users: dict[int, list[int]] = {}
    for step, use in self._read(self._checkpoints.steps()).items():
      if use.generation is not None:
        users.setdefault(use.generation, []).append(step)
    return users

  def pinned(self, *, every: bool = False) -> set[int]:
    """Returns the generations that a run resumed from any checkpoint needs.

    A run that waits for its generations needs those of all its checkpoints.
    With `every`, all checkpoints are taken to be of such a run.

    Raises:
      UnknownNeedsError: There is no checkpoint, or one cannot be read.
    """
    steps = self._checkpoints.steps()
    if not steps:
      raise UnknownNeedsError(
        f"{self._checkpoints.directory} has no checkpoint that says which "
        "generations are needed; give the MODEL_DIR of the run"
      )
    uses = self._read(steps)
    for step in steps:
      if step not in uses:
        self._check_needs_none(step)
    waiting = {step for step, use in uses.items() if use.run_waits}
    if every:
      waiting.update(steps)
    return self.used_by(steps) | waiting

  def _check_needs_none(self, step: int) -> None:
    """Checks that an unread checkpoint has no loop state, or is removed."""
    try:
      if "loop" not in self._checkpoints.items(step):
        return
    except (ValueError, OSError):
      pass
    if not is_removed(self._checkpoints, step):
      raise UnknownNeedsError(
        f"checkpoint {step} of {self._checkpoints.directory} does not say "
        "which generation it needs, for it cannot be read; remove it, or try "
        "again"
      )

  def _read(self, steps: Sequence[int]) -> dict[int, _Use]:
    for step in steps:
      if step not in self._uses:
        try:
          loop = self._checkpoints.restore(step, items=("loop",))["loop"]
        except (ValueError, OSError):
          continue  # Removed meanwhile, without loop state, or unreadable.
        self._uses[step] = _Use(
          recorded_generation(loop), bool(loop.get("lag_steps", 0))
        )
    return {step: self._uses[step] for step in steps if step in self._uses}


def is_removed(checkpoints: CheckpointStore, step: int) -> bool:
  """Returns whether a checkpoint that cannot be restored is being removed.

  Its directory is removed last, so it is listed for a moment after its files
  are gone; this waits for that.
  """
  end = time.monotonic() + _REMOVAL_SECONDS
  while step in checkpoints.steps():
    if time.monotonic() > end:
      return False
    time.sleep(0.2)
  return True
