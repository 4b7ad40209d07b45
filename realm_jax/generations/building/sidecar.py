"""The sidecar: follows a run's checkpoints and publishes generations.

It shares files with the trainer and nothing else; either may be killed,
restarted or moved to another host. Of several workers the first one runs it,
and the others help (`helper.py`).
"""

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal

from absl import logging
from etils import epath

from realm_jax.checkpoints.store import (
  CheckpointError,
  CheckpointStore,
  UnreadableCheckpointError,
)
from realm_jax.files.local_disk.disk_full import DiskFullError
from realm_jax.generations.building import assignment
from realm_jax.generations.building.current_builder import CurrentBuilder
from realm_jax.generations.building.worker import PreemptedError
from realm_jax.generations.store import publisher
from realm_jax.generations.store.damage_reports import take_reports
from realm_jax.generations.store.retention import (
  RetainedGenerations,
  UnknownNeedsError,
  to_prune,
)
from realm_jax.indexes.protocol import RecallError
from realm_jax.settings import (
  NonNegativeInt,
  PositiveFloat,
  PositiveInt,
  require_valid,
)

_REMINDER_SECONDS = 30.0


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
    keep_generations: Number of the newest generations that stay. Leased ones
      and those that checkpoints need stay as well.
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


class Sidecar:
  """Chooses checkpoints, has generations built, and removes old ones.

  It takes the `builder` to newer versions of the corpus. The event `stop` ends
  it, as SIGTERM does. The function `check` is called regularly; an exception
  stops it.
  """

  def __init__(
    self,
    config: SidecarConfig,
    builder: CurrentBuilder,
    *,
    checkpoints: CheckpointStore,
    generations_dir: epath.PathLike,
    stop: threading.Event,
    check: Callable[[], None] = lambda: None,
  ):
    if config.checkpoint_step is not None and not config.once:
      raise ValueError(
        f"checkpoint_step={config.checkpoint_step} is for one generation; pass "
        "--once"
      )
    self._config = config
    self._builder = builder
    self._checkpoints = checkpoints
    self._directory = epath.Path(generations_dir)
    self._stop = stop
    self._check = check
    self._skips_none = config.mode == "every" and not config.once
    self._retained = RetainedGenerations(checkpoints)
    # Checkpoints from which no generation can be built.
    self._skipped: set[int] = set()
    self._last_message = ""
    self._say_at = 0.0

  def run(self) -> list[int]:
    """Follows the checkpoints; returns the steps that it published."""
    # A worker that was killed may have left one.
    assignment.write(self._directory, None)
    publisher.remove_damaged(self._directory)
    published: list[int] = []
    while not self._stop.is_set():
      self._check()
      self._builder.follow()
      if reported := take_reports(self._directory):
        publisher.remove_damaged(self._directory, reported)
      steps = self._candidate_steps()
      step = next_step(
        steps,
        up_to_date=self._up_to_date(steps) | self._skipped,
        needed=self._retained.used_by(steps[-1:]),
        every=self._skips_none,
        distance=self._distance,
      )
      if step is not None:
        if self._try_to_build(step, newest=self._due(steps)[-1:]):
          published.append(step)
        self._prune()
        if self._config.once and published:
          return published
      elif self._config.once and steps:
        logging.info("generation %d is up to date", steps[-1])
        return published
      else:
        self._log_waiting(for_first=not steps)
        self._stop.wait(self._config.poll_seconds)
    logging.info("Preempted: %d generations published, exiting", len(published))
    return published

  def is_up_to_date(self) -> bool:
    """Returns whether the newest checkpoint has its generation already."""
    self._builder.follow()
    steps = self._candidate_steps()
    return bool(steps) and steps[-1] in self._up_to_date(steps)

  def _candidate_steps(self) -> list[int]:
    """Returns the checkpoints, or only `checkpoint_step` if it is given.

    Raises:
      CheckpointError: That checkpoint will not come any more.
    """
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

  @property
  def _distance(self) -> int:
    """Distance of the checkpoints to build from, in steps."""
    return 1 if self._config.once else self._config.refresh_every_steps or 1

  def _due(self, steps: Sequence[int]) -> list[int]:
    """Returns the checkpoints that are not skipped."""
    return due(steps, distance=self._distance)

  def _up_to_date(self, steps: Sequence[int]) -> set[int]:
    """Returns the steps that need no build, given the candidate steps."""
    newest = () if self._skips_none else self._due(steps)[-1:]
    return self._builder.get().up_to_date(newest)

  def _try_to_build(self, step: int, *, newest: Sequence[int]) -> bool:
    """Builds a generation; returns whether it was published.

    `newest` has the newest checkpoint to build from, if there is one.
    Errors that another checkpoint, or free disk space, can end are logged.
    """
    try:
      builder = self._builder.get()
      retriever = builder.restore(self._checkpoints, step)
      return retriever is not None and builder.build(
        step,
        retriever,
        check=self._check_preempted,
        is_needed=self._is_needed,
        is_possible=lambda: step in self._checkpoints.steps(),
      )
    except (RecallError, UnreadableCheckpointError) as error:
      # A trainer that was killed may have left an old one half removed.
      may_skip = step not in newest
      if isinstance(error, RecallError):
        may_skip = not self._skips_none
      if self._config.once or not may_skip:
        raise
      self._skipped.add(step)
      logging.error("generation %d is not built: %s", step, error)
    except DiskFullError as error:
      if self._config.once:
        raise
      logging.error("%s; trying again later", error)
      self._stop.wait(self._config.retry_seconds)
    except PreemptedError:
      pass
    return False

  def _check_preempted(self) -> None:
    self._check()
    if self._stop.is_set():
      raise PreemptedError

  def _is_needed(self, step: int) -> bool:
    """Returns whether unfinished shards of a step may become a generation."""
    steps = self._checkpoints.steps()
    wanted_now = self._due(steps)
    wanted = {*wanted_now[-1:], *self._retained.used_by(steps[-1:])}
    if self._config.mode == "every" or self._config.checkpoint_step is not None:
      wanted.update(wanted_now)
    return step in wanted.intersection(steps) - self._up_to_date(steps)

  def _prune(self) -> None:
    if self._stop.is_set():
      return
    try:
      steps = to_prune(
        self._directory,
        keep=self._config.keep_generations,
        pinned=self._retained.pinned(every=self._config.mode == "every"),
      )
      publisher.remove(self._directory, steps)
      if steps:
        logging.info("removed generations %s", steps)
    except UnknownNeedsError as error:
      logging.warning("no generation is removed this time: %s", error)

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
