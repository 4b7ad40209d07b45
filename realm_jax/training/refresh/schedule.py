"""Which generation a step searches, and how stale it is."""

import time

from absl import logging

from realm_jax.generations.follow.loading import Generation
from realm_jax.generations.follow.watcher import GenerationWatcher
from realm_jax.generations.store.manifest import DamagedGenerationError
from realm_jax.indexes.protocol import IndexCrashedError
from realm_jax.training.config import RefreshConfig
from realm_jax.training.decisions import Decisions
from realm_jax.training.refresh.fallback import CrashFallback

_REMINDER_SECONDS = 30.0
_POLL_SECONDS = 1.0
# How long a run that stopped as stale waits for a fresher generation when it is
# resumed.
_FRESHER_SECONDS = 600.0


class StaleIndexError(ValueError):
  """The generation in use is older than the run allows."""


class GenerationTimeoutError(TimeoutError):
  """A generation was not published in time."""


class WaitPreemptedError(Exception):
  """The run was preempted while it waited for a generation."""


# What is raised when a run has nothing to search. It saves and ends.
RETRIEVAL_UNAVAILABLE = (
  WaitPreemptedError,
  StaleIndexError,
  IndexCrashedError,
  GenerationTimeoutError,
)


class GenerationSchedule:
  """Chooses the generation of each step.

  Generations are `save_every_steps` apart, as checkpoints are.
  """

  def __init__(
    self,
    watcher: GenerationWatcher,
    config: RefreshConfig,
    *,
    save_every_steps: int,
    decisions: Decisions,
    fallback: CrashFallback,
  ):
    self._watcher = watcher
    self._config = config
    self._every = save_every_steps
    self._decisions = decisions
    self._fallback = fallback
    self._current: Generation | None = None
    # Generations up to this step are not used again: one of them has crashed.
    self._crashed = -1
    self._warned_at: int | None = None
    self.swaps = 0

  @property
  def current(self) -> Generation:
    """The generation in use, once the schedule was started."""
    assert self._current is not None, "start the schedule first"
    return self._current

  def start(self, step: int, recorded: int | None) -> Generation:
    """Returns the generation that a new or resumed run begins with.

    `step` is the run's next, and `recorded` what its checkpoint names, if any.

    Raises:
      WaitPreemptedError: The run was preempted before it was published.
      GenerationError: It is damaged, of another corpus, or too small.
      IndexCrashedError: Its index crashed, and the run is configured to fail.
      GenerationTimeoutError: It was not published in time.
    """
    config = self._config
    if recorded is None:
      recorded = self._due(step) if config.wait else 0
    self._use(self._wait_for(recorded))
    if config.on_stale == "fail" and config.refresh and not config.wait:
      self._wait_for_fresher(step)
    return self.current

  def at(self, step: int) -> Generation:
    """Returns the generation of a step; steps must be asked for in order.

    Raises:
      StaleIndexError: It is too old, and the run is configured to fail.
      And what `start` raises.
    """
    if not self._config.refresh:
      return self.current
    if not self._config.wait:
      self._swap_to_newest(step)
    elif (due := self._due(step)) > max(self.current.step, self._crashed):
      self._swap(self._wait_for(due), step)
    self._check_staleness(step)
    return self.current

  def after_crash(self, error: IndexCrashedError) -> Generation:
    """Replaces the current generation, whose index has crashed.

    Raises:
      IndexCrashedError: The run is configured to fail, or nothing is left.
    """
    self._crashed = max(self._crashed, self.current.step)
    self._use(self._fallback.replace(self.current, error))
    return self.current

  def _use(self, generation: Generation) -> None:
    self._current = generation
    self._watcher.in_use(generation.step)

  def _swap(self, generation: Generation, step: int) -> None:
    logging.info(
      "generation %d replaces %d at step %d",
      generation.step,
      self.current.step,
      step,
    )
    self._use(generation)
    self.swaps += 1

  def _swap_to_newest(self, step: int) -> bool:
    """Swaps in the newest loaded generation, if it is later than the current.

    A generation up to a crashed one is not used.
    """
    newest = self._watcher.newest()
    loaded = None if newest is None else newest.step
    agreed = self._decisions.generation(step, loaded)
    if agreed is None or newest is None:
      return False
    if agreed <= max(self.current.step, self._crashed):
      return False
    if agreed != newest.step:
      newest = self._watcher.wait_for(agreed, timeout=None)
    self._swap(newest, step)
    return True

  def _wait_for_fresher(self, step: int) -> None:
    """Waits for a generation that is not stale, for a run that stopped so."""
    deadline = time.monotonic() + _FRESHER_SECONDS
    if self._is_stale(step):
      logging.info(
        "generation %d is too old for step %d: waiting up to %.0f s for a "
        "later one",
        self.current.step,
        step,
        _FRESHER_SECONDS,
      )
    while self._is_stale(step) and time.monotonic() < deadline:
      if self._decisions.stop_requested():
        raise WaitPreemptedError
      if not self._swap_to_newest(step):
        time.sleep(_POLL_SECONDS)

  def _due(self, step: int) -> int:
    """Returns the generation that a waiting run searches at a step."""
    return max(0, (step - self._config.lag_steps) // self._every * self._every)

  def _wait_for(self, step: int) -> Generation:
    config = self._config
    began = time.monotonic()
    remind_at = began + _REMINDER_SECONDS
    while not self._decisions.stop_requested():
      try:
        return self._watcher.wait_for(step, timeout=_POLL_SECONDS)
      except DamagedGenerationError:
        if (later := self._later_than(step, "damaged")) is not None:
          return later
        may_skip = self._takes_any() and self._watcher.has_later(step)
        if self._current is None and not may_skip:
          raise
        # The watcher has reported it, so that the index builder rebuilds it.
        time.sleep(_POLL_SECONDS)
      except TimeoutError:
        if (later := self._later_than(step, "gone")) is not None:
          return later
      now = time.monotonic()
      if now > began + config.timeout_seconds:
        raise GenerationTimeoutError(
          f"generation {step} was not published within "
          f"{config.timeout_seconds:.0f} s; is realm_jax.build_index running "
          "on this MODEL_DIR?"
        )
      if now > remind_at:
        remind_at = now + _REMINDER_SECONDS
        logging.info(
          "waiting for generation %d, which realm_jax.build_index publishes%s",
          step,
          ' (with MODE="every", which skips none)' if config.wait else "",
        )
    raise WaitPreemptedError

  def _takes_any(self) -> bool:
    """Whether a resumed run may begin with a later generation than recorded."""
    config = self._config
    return self._current is None and config.refresh and not config.wait

  def _later_than(self, step: int, reason: str) -> Generation | None:
    """Returns a later generation, for a resumed run that lost its own.

    The checkpoint of its own may be gone, too, so that none would rebuild it.
    """
    if not self._takes_any():
      return None
    newest = self._watcher.newest()
    if newest is None or newest.step <= step:
      return None
    found = newest.step
    logging.warning(
      "generation %d is %s: continuing with generation %d", step, reason, found
    )
    return newest

  def _is_stale(self, step: int) -> bool:
    limit = self._config.max_staleness_steps
    return limit is not None and step - self.current.oldest_step > limit

  def _check_staleness(self, step: int) -> None:
    limit = self._config.max_staleness_steps
    if limit is None or not self._is_stale(step):
      return
    staleness = step - self.current.oldest_step
    message = (
      f"the oldest vector of generation {self.current.step} is {staleness} "
      f"steps old at step {step}, above max_staleness_steps={limit}; is the "
      "index builder alive, and does it refresh every block in time?"
    )
    if self._config.on_stale == "fail":
      raise StaleIndexError(message)
    if self._warned_at is None or step - self._warned_at >= limit:
      self._warned_at = step
      logging.warning("%s", message)
