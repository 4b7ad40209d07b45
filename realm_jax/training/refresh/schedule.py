"""Which generation a step searches, and how stale it is."""

import time
from collections.abc import Callable

from absl import logging
from etils import epath

from realm_jax.generations.follow.loading import Generation
from realm_jax.generations.follow.watcher import GenerationWatcher
from realm_jax.generations.store.manifest import (
  DamagedGenerationError,
  GenerationError,
)
from realm_jax.indexes.protocol import IndexCrashedError
from realm_jax.training.config import RefreshConfig
from realm_jax.training.decisions import Decisions
from realm_jax.training.goodput import Goodput
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
  """The run was preempted while it waited for an index."""


# What is raised when a run has nothing to search. It saves and ends.
RETRIEVAL_UNAVAILABLE = (
  WaitPreemptedError,
  StaleIndexError,
  IndexCrashedError,
  GenerationTimeoutError,
)


# An index is stale that no newer one has replaced when it was due so often.
_REFRESHES_UNTIL_STALE = 10
# What keeps all processes of a run from searching, where it happens to one.
_NOT_FOUND = (
  *RETRIEVAL_UNAVAILABLE,
  GenerationError,
  DamagedGenerationError,
)


class GenerationSchedule:
  """Chooses the generation of each step.

  Generations are `every_steps` apart. Where the configuration asks for this
  distance, those of steps between are not used; without it they are, such as
  the one of a checkpoint that a preempted run has saved.
  """

  def __init__(
    self,
    watcher: GenerationWatcher,
    config: RefreshConfig,
    *,
    model_dir: epath.PathLike,
    every_steps: int,
    decisions: Decisions,
    fallback: CrashFallback,
    goodput: Goodput,
  ):
    self._builder = (
      f"`python -m realm_jax.build_index --model_dir={model_dir}"
      + (" --gin.MODE=every`" if config.wait_for_generations else "`")
    )
    self._watcher = watcher
    self._config = config
    self._every = every_steps
    limit = config.max_staleness_steps
    # With 0 there is no limit.
    self._max_staleness_steps = (
      _REFRESHES_UNTIL_STALE * every_steps if limit is None else limit
    )
    self._decisions = decisions
    self._fallback = fallback
    self._goodput = goodput
    self._current: Generation | None = None
    # Generations up to this step are not used again: one of them has crashed.
    self._crashed = -1
    self._warned_at: int | None = None
    # What this process has last said that it could swap in.
    self._offered: Generation | None = None
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
      recorded = self._due(step) if config.wait_for_generations else 0
    self._use(self._on_all(lambda: self._wait_for(recorded)))
    if (
      config.on_stale == "fail"
      and config.swap_generations
      and not config.wait_for_generations
    ):
      self._wait_for_fresher(step)
    return self.current

  def at(self, step: int) -> Generation:
    """Returns the generation of a step; steps must be asked for in order.

    Raises:
      StaleIndexError: It is too old, and the run is configured to fail.
      And what `start` raises.
    """
    if not self._config.swap_generations:
      return self.current
    if not self._config.wait_for_generations:
      self._swap_to_newest(step)
    elif (due := self._due(step)) > max(self.current.step, self._crashed):
      self._swap(self._on_all(lambda: self._wait_for(due)), step)
    self._check_staleness(step)
    return self.current

  def loaded(self) -> int | None:
    """Returns which generation this process could swap in, for the decisions.

    That is the newest in process 0. The others load the one that process 0
    would like, and return it once it is loaded.
    """
    if not self._config.swap_generations or self._config.wait_for_generations:
      return None
    if not self._decisions.loop.is_leader:
      wanted = self._decisions.generation_to_load
      self._offered = None if wanted is None else self._watcher.request(wanted)
    else:
      self._offered = self._newest()
    return None if self._offered is None else self._offered.step

  def after_crash(self, error: IndexCrashedError) -> Generation:
    """Replaces the current generation, whose index has crashed.

    Raises:
      IndexCrashedError: The run is configured to fail, or nothing is left.
    """
    self._crashed = max(self._crashed, self.current.step)
    self._use(self._fallback.replace(self.current, error))
    return self.current

  def _on_all(self, find: Callable[[], Generation]) -> Generation:
    """Returns the generation that process 0 finds, once all have loaded it."""
    loop = self._decisions.loop
    with self._goodput.measure("waiting"):
      if loop.count == 1:
        return find()
      step = loop.on_process_0(
        "which generation", lambda: find().step, _NOT_FOUND
      )
      return loop.on_all_processes(
        f"generation {step}",
        lambda: self._wait_for(step, exactly=True),
        _NOT_FOUND,
      )

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
    with self._goodput.measure("swapping"):
      self._use(generation)
    self.swaps += 1

  def _swap_to_newest(self, step: int) -> None:
    """Swaps in the newest loaded generation, if it is later than the current.

    A generation up to a crashed one is not used.
    """
    # A process may have loaded a later one since all of them agreed.
    several = self._decisions.loop.count > 1
    newest = self._offered if several else self._newest()
    agreed = self._decisions.generation(None if newest is None else newest.step)
    if agreed is None or agreed <= max(self.current.step, self._crashed):
      return
    assert newest is not None
    assert newest.step == agreed
    self._swap(newest, step)

  def _newest(self) -> Generation | None:
    """Returns the newest loaded generation, if its step is one to be used."""
    newest = self._watcher.newest()
    every = self._config.refresh_every_steps
    if newest is None or (every is not None and newest.step % every):
      return None
    return newest

  def _wait_for_fresher(self, step: int) -> None:
    """Waits for a generation that is not stale, for a run that stopped so."""
    if not self._is_stale(step):
      return
    logging.info(
      "generation %d is too old for step %d: waiting up to %.0f s for a later "
      "one",
      self.current.step,
      step,
      _FRESHER_SECONDS,
    )
    fresher = self._on_all(lambda: self._find_fresher(step))
    if fresher.step > self.current.step:
      self._swap(fresher, step)

  def _find_fresher(self, step: int) -> Generation:
    """Returns a generation that is not stale, or the newest in time."""
    deadline = time.monotonic() + _FRESHER_SECONDS
    found = self.current
    while self._is_stale(step, found) and time.monotonic() < deadline:
      if self._decisions.stop_requested():
        raise WaitPreemptedError
      newest = self._newest()
      if newest is not None and newest.step > max(found.step, self._crashed):
        found = newest
      else:
        time.sleep(_POLL_SECONDS)
    return found

  def _due(self, step: int) -> int:
    """Returns the generation that a waiting run searches at a step."""
    return max(0, (step - self._config.lag_steps) // self._every * self._every)

  def _wait_for(self, step: int, *, exactly: bool = False) -> Generation:
    """Waits for a generation; a resumed run may begin with a later one.

    With `exactly` it may not.
    """
    config = self._config
    takes_any = (
      self._current is None
      and config.swap_generations
      and not config.wait_for_generations
      and not exactly
    )
    began = time.monotonic()
    # A new run says at once that it needs a builder.
    remind_at = began + (_REMINDER_SECONDS if self._current else 0.0)
    while not self._decisions.stop_requested():
      try:
        return self._watcher.wait_for(step, timeout=_POLL_SECONDS)
      except DamagedGenerationError:
        if takes_any and (later := self._later_than(step, "damaged")):
          return later
        may_skip = takes_any and self._watcher.has_later(step)
        if self._current is None and not may_skip:
          raise
        # The watcher has reported it, so that the index builder rebuilds it.
        time.sleep(_POLL_SECONDS)
      except TimeoutError:
        if takes_any and (later := self._later_than(step, "gone")):
          return later
      now = time.monotonic()
      if now > began + config.timeout_seconds:
        raise GenerationTimeoutError(
          f"generation {step} was not published within "
          f"{config.timeout_seconds:.0f} s; is {self._builder} running?"
        )
      if now >= remind_at:
        remind_at = now + _REMINDER_SECONDS
        logging.info(
          "waiting for generation %d, which %s publishes", step, self._builder
        )
    raise WaitPreemptedError

  def _later_than(self, step: int, reason: str) -> Generation | None:
    """Returns a later generation, for a resumed run that lost its own.

    The checkpoint of its own may be gone, too, so that none would rebuild it.
    """
    newest = self._watcher.newest()
    if newest is None or newest.step <= step:
      return None
    found = newest.step
    logging.warning(
      "generation %d is %s: continuing with generation %d", step, reason, found
    )
    return newest

  def _is_stale(self, step: int, generation: Generation | None = None) -> bool:
    limit = self._max_staleness_steps
    oldest_step = (generation or self.current).oldest_step
    return 0 < limit < step - oldest_step

  def _check_staleness(self, step: int) -> None:
    limit = self._max_staleness_steps
    if not self._is_stale(step):
      return
    staleness = step - self.current.oldest_step
    message = (
      f"the oldest vector of generation {self.current.step} is {staleness} "
      f"steps old at step {step}, above MAX_STALENESS_STEPS={limit}; is the "
      "index builder alive, and does it refresh every block in time?"
    )
    if self._config.on_stale == "fail":
      raise StaleIndexError(message)
    if self._warned_at is None or step - self._warned_at >= limit:
      self._warned_at = step
      logging.warning("%s", message)
