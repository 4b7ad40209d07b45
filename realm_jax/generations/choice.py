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
from realm_jax.generations.manifest import GenerationError
from realm_jax.generations.store import GenerationStore
from realm_jax.indexes.registry import parameters_of
from realm_jax.settings import (
  NonNegativeInt,
  PositiveFloat,
  PositiveInt,
  require_valid,
)

_REMINDER_SECONDS = 60.0
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
    checkpoint_step: The only checkpoint to build from, which implies `once`.
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
  """What all processes do next: build a generation, wait for a step, or end.

  `is_newest` is whether the step is that of the newest checkpoint to build
  from.
  """

  step: int | None = None
  corpus_version: int = 0
  corpus_fingerprint: str = ""
  is_newest: bool = False
  ends: bool = False


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
    self._config, self._generation = config, generation
    self._corpus, self._checkpoints, self._store = corpus, checkpoints, store
    self._uses = GenerationUses(checkpoints)
    self.skipped: set[int] = set()

  def choose(self) -> Choice:
    """Returns the choice.

    Raises:
      CheckpointError: The checkpoint that is wanted will not come any more.
    """
    config = self._config
    self._follow_corpus()
    self._store.remove_damaged(marked=True)
    steps = self._candidate_steps()
    distance = 1 if config.once else config.refresh_every_steps or 1
    wanted = [step for step in steps if step % distance == 0]
    newest = wanted[-1:]
    # Those that a run uses which resumes from the newest checkpoint come first.
    needed = {use.generation for use in self._uses.of(steps[-1:]).values()}
    lost = [step for step in steps if step in needed]
    done = self._up_to_date(newest) | self.skipped
    order = [*lost, *(wanted if config.skips_none else newest)]
    step = next((step for step in order if step not in done), None)
    if step is None:
      if config.once and steps:
        logging.info("generation %d is up to date", steps[-1])
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
          self._checkpoints.directory,
        )
      return Choice(ends=config.once and bool(steps))
    version, fingerprint = self._corpus.version, self._corpus.fingerprint
    logging.info(
      "building generation %d on version %d of the corpus", step, version
    )
    self._store.remove_drafts(but=step)
    return Choice(step, version, fingerprint, is_newest=step in newest)

  def prune(self) -> None:
    """Removes generations that nobody needs."""
    try:
      steps = self._store.prunable(
        keep=self._config.keep_generations,
        pinned=self._uses.pinned(every=self._config.mode == "every"),
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
      self._corpus = self._corpus.newest()
    except CorpusError as error:
      logging.log_every_n_seconds(
        logging.WARNING,
        "staying with version %d of the corpus: %s",
        _REMINDER_SECONDS,
        self._corpus.version,
        error,
      )

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
    index, corpus = self._generation.index, self._corpus
    # As a manifest holds them, without tuples.
    parameters = json.loads(json.dumps(parameters_of(index)))
    steps = set()
    for step in self._store.steps():
      with contextlib.suppress(GenerationError):
        found = self._store.manifest(step)
        version = found.corpus_version, found.corpus_fingerprint
        may_be_old = step not in newest or self._config.skips_none
        if (
          (found.index_kind, found.index_parameters) == (index.kind, parameters)
          and found.dtype == self._generation.stored_dtype
          and (
            version[1] == corpus.fingerprint
            or (may_be_old and corpus.has_version(*version))
          )
        ):
          steps.add(step)
    return steps


class UnknownNeedsError(ValueError):
  """A run whose checkpoints do not say which generations they need."""


class Use(NamedTuple):
  """The generation that a run uses at a checkpoint, and whether it waits."""

  generation: int | None
  run_waits: bool


class GenerationUses:
  """What the checkpoints of a run say of the generations that they use."""

  def __init__(self, checkpoints: CheckpointStore):
    self._checkpoints = checkpoints
    self._uses: dict[int, Use] = {}

  def of(self, steps: Sequence[int]) -> dict[int, Use]:
    """Returns the uses at those checkpoints that can be read, by step."""
    for step in set(steps) - set(self._uses):
      # It may be removed meanwhile, without loop state, or unreadable.
      with contextlib.suppress(ValueError, OSError):
        loop = self._checkpoints.restore(step, items=("loop",))["loop"]
        self._uses[step] = Use(
          recorded_generation(loop), bool(loop.get("lag_steps", 0))
        )
    return {step: self._uses[step] for step in steps if step in self._uses}

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
    uses = self.of(steps)
    for step in set(steps) - set(uses):
      if self._has_loop(step) and not is_removed(self._checkpoints, step):
        raise UnknownNeedsError(
          f"checkpoint {step} of {self._checkpoints.directory} does not say "
          "which generation it needs, for it cannot be read; remove it, or try "
          "again"
        )
    waiting = {step for step, use in uses.items() if use.run_waits}
    used = {use.generation for use in uses.values()}
    pinned = used.union(steps if every else waiting)
    return {step for step in pinned if step is not None}

  def _has_loop(self, step: int) -> bool:
    """Returns whether a checkpoint has loop state, as far as can be seen."""
    try:
      return "loop" in self._checkpoints.items(step)
    except (ValueError, OSError):
      return True


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
