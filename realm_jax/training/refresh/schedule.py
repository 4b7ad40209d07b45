"""Which generation a step searches, and how stale that is."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from absl import logging

from realm_jax.generations.store.manifest import DamagedGenerationError
from realm_jax.indexes.protocol import IndexCrashedError
from realm_jax.training.crashed_index import ON_CRASH, CrashPolicy

_REMINDER_SECONDS = 30.0
_LOOK_SECONDS = 1.0
_FRESHER_SECONDS = 600.0


class StaleIndexError(ValueError):
  """The generation in use is older than the run allows."""


class StoppedWaiting(Exception):
  """The run was told to stop while it waited for a generation."""


# What `GenerationSchedule.at` raises where a run ends for now, and is saved.
NOTHING_TO_SEARCH = (
  StoppedWaiting,
  StaleIndexError,
  IndexCrashedError,
  TimeoutError,
)


@dataclasses.dataclass(frozen=True)
class RefreshConfig:
  """How the trainer follows the index builder.

  Attributes:
    refresh: whether later generations are swapped in at all; open QA stays
      with its first.
    wait: the generation of checkpoint c is used from exactly step
      c + lag_steps, and the trainer waits for it, so that a run is
      deterministic. Otherwise the newest that is loaded is used.
    lag_steps: see `wait`; time for the builder to work in.
    max_staleness_steps: the oldest vector that may be searched.
    on_stale: `warn` or `fail`, beyond that.
    on_crash: what to search when the index's process is gone: `exact`, by
      exact search; `last`, the generation before; or `fail`.
    timeout_seconds: how long to wait for a generation before giving up.
  """

  refresh: bool = True
  wait: bool = False
  lag_steps: int = 100
  max_staleness_steps: int | None = None
  on_stale: str = "warn"
  on_crash: str = "exact"
  timeout_seconds: float = 24 * 3600.0

  def __post_init__(self):
    if self.lag_steps < 1:
      raise ValueError(
        f"lag_steps={self.lag_steps}: a generation cannot be used before the "
        "step after its checkpoint; want 1 or more"
      )
    if self.on_stale not in ("warn", "fail"):
      raise ValueError(f"on_stale={self.on_stale!r}; want 'warn' or 'fail'")
    if self.on_crash not in ON_CRASH:
      raise ValueError(
        f"on_crash={self.on_crash!r}; want one of {', '.join(ON_CRASH)}"
      )

  def require_lag_fits(
    self, *, keep_checkpoints: int, save_every_steps: int, num_steps: int
  ) -> None:
    """Holds the lag of a waiting run against its checkpoints and its length.

    Raises:
      ValueError: a checkpoint would go before its generation is due.
    """
    if self.lag_steps > keep_checkpoints * save_every_steps:
      raise ValueError(
        f"lag_steps={self.lag_steps} exceeds the {keep_checkpoints} "
        f"checkpoints, {save_every_steps} steps apart, that are kept: one "
        "would go before its generation is due; lower LAG_STEPS or raise "
        "SAVE_EVERY_STEPS"
      )
    if self.lag_steps >= num_steps:
      logging.warning(
        "no generation but the first will be used: the others are due "
        "lag_steps=%d after their checkpoints, in a run of %d steps",
        self.lag_steps,
        num_steps,
      )

  @property
  def follow(self) -> str:
    """What the watcher loads before it is asked."""
    if not self.refresh:
      return "none"
    return "next" if self.wait else "newest"


class GenerationSchedule:
  """Chooses the generation of each step.

  Args:
    watcher: finds, verifies and loads generations in the background.
    config: see `RefreshConfig`.
    save_every_steps: the distance of checkpoints, and so of generations.
    crash_policy: says what to search in place of a crashed index.
    is_stopping: whether the run was told to stop; asked while it waits.
  """

  def __init__(
    self,
    watcher: Any,
    config: RefreshConfig,
    *,
    save_every_steps: int,
    crash_policy: CrashPolicy | None = None,
    is_stopping: Callable[[], bool] = lambda: False,
  ):
    self._watcher = watcher
    self._is_stopping = is_stopping
    self._config = config
    self._every = save_every_steps
    self._crash_policy = crash_policy
    self._current: Any = None
    self._crashed = -1
    self._warned_at: int | None = None
    self.swaps = 0

  def start(self, step: int, recorded: int | None) -> Any:
    """The generation that a run begins, or goes on, with.

    Args:
      step: the next step.
      recorded: the generation that the checkpoint names, if it names one.

    Raises:
      StoppedWaiting: the run was told to stop, and it is not there yet.
      GenerationError: it is there, and damaged or of something else.
      IndexCrashedError: its index crashed, and the run is told to fail.
      TimeoutError: it did not appear in time.
    """
    if recorded is not None:
      first = recorded
    elif self._config.wait:
      first = self._due(step)
    else:
      first = 0
    self._current = self._wait_for(first)
    self._watcher.in_use(self._current.step)
    config = self._config
    if config.on_stale == "fail" and config.refresh and not config.wait:
      self._wait_for_fresher(step)
    return self._current

  def _wait_for_fresher(self, step: int) -> None:
    """Gives a run that stopped as stale the time to load what came since."""
    until = time.monotonic() + _FRESHER_SECONDS
    if self._is_stale(step):
      logging.info(
        "generation %d is too old for step %d: waiting up to %.0f s for a "
        "later one",
        self._current.step,
        step,
        _FRESHER_SECONDS,
      )
    while self._is_stale(step) and time.monotonic() < until:
      if self._is_stopping():
        raise StoppedWaiting
      if (newest := self._newest()) is not None:
        self._swap(newest, step)
      else:
        time.sleep(_LOOK_SECONDS)

  def at(self, step: int) -> Any:
    """The generation of a step; steps must be asked for in order.

    Raises:
      StoppedWaiting: the run was told to stop, and it is not there yet.
      GenerationError: it is there, and is none that this run can use.
      IndexCrashedError: its index crashed, and the run is told to fail.
      StaleIndexError: it is too old, and the run is told to fail.
      TimeoutError: it did not appear in time.
    """
    config = self._config
    if config.refresh:
      if config.wait:
        due = self._due(step)
        if due > max(self._current.step, self._crashed):
          self._swap(self._wait_for(due), step)
      else:
        if (newest := self._newest()) is not None:
          self._swap(newest, step)
      self._check_staleness(step)
    return self._current

  def after_crash(self, error: IndexCrashedError) -> Any:
    """What to search from now on in place of the current generation.

    Raises:
      IndexCrashedError: the run is told to fail, or nothing is left.
    """
    if self._crash_policy is None:
      raise error
    self._crashed = max(self._crashed, self._current.step)
    self._current = self._crash_policy.instead_of(self._current, error)
    self._watcher.in_use(self._current.step)
    return self._current

  def _newest(self) -> Any:
    """The newest that is loaded, later than the current and any crashed one."""
    newest = self._watcher.newest()
    least = max(self._current.step, self._crashed)
    return newest if newest is not None and newest.step > least else None

  def _due(self, step: int) -> int:
    return max(0, (step - self._config.lag_steps) // self._every * self._every)

  def _swap(self, generation: Any, step: int) -> None:
    logging.info(
      "generation %d replaces %d at step %d",
      generation.step,
      self._current.step,
      step,
    )
    self._current = generation
    self._watcher.in_use(generation.step)
    self.swaps += 1

  def _wait_for(self, step: int) -> Any:
    config = self._config
    began = time.monotonic()
    remind_at = began + _REMINDER_SECONDS
    while not self._is_stopping():
      try:
        return self._watcher.wait_for(step, timeout=_LOOK_SECONDS)
      except DamagedGenerationError:
        if (later := self._in_place_of(step, "damaged")) is not None:
          return later
        if self._current is None and not self._may_go_on_without(step):
          raise
        # The watcher said so, to the builder too, which makes it again.
        time.sleep(_LOOK_SECONDS)
      except TimeoutError:
        if (later := self._in_place_of(step, "gone")) is not None:
          return later
      now = time.monotonic()
      if now > began + config.timeout_seconds:
        raise TimeoutError(
          f"generation {step} did not appear within "
          f"{config.timeout_seconds:.0f} s; is realm_jax.build_index "
          "running on this MODEL_DIR?"
        )
      if now > remind_at:
        remind_at = now + _REMINDER_SECONDS
        logging.info(
          "waiting for generation %d; realm_jax.build_index makes it%s",
          step,
          ' (with MODE="every", which skips none)' if config.wait else "",
        )
    raise StoppedWaiting

  def _takes_any(self) -> bool:
    """Whether a run that goes on may begin with a later generation."""
    config = self._config
    return self._current is None and config.refresh and not config.wait

  def _may_go_on_without(self, step: int) -> bool:
    """Whether a later generation can be had, that is not loaded yet."""
    return self._takes_any() and self._watcher.has_later(step)

  def _in_place_of(self, step: int, what: str) -> Any:
    """A later generation, where a run goes on and its own is gone or damaged.

    Its checkpoint may be gone, too, so that nobody would make it again.
    """
    if not self._takes_any():
      return None
    newest = self._watcher.newest()
    if newest is None or newest.step <= step:
      return None
    logging.warning(
      "generation %d is %s: going on with generation %d",
      step,
      what,
      newest.step,
    )
    return newest

  def _is_stale(self, step: int) -> bool:
    limit = self._config.max_staleness_steps
    return limit is not None and step - self._current.oldest_step > limit

  def _check_staleness(self, step: int) -> None:
    limit = self._config.max_staleness_steps
    if limit is None or not self._is_stale(step):
      return
    staleness = step - self._current.oldest_step
    text = (
      f"the oldest vector of generation {self._current.step} is {staleness} "
      f"steps old at step {step}, above max_staleness_steps={limit}; is the "
      "index builder alive, and does it refresh every block in time?"
    )
    if self._config.on_stale == "fail":
      raise StaleIndexError(text)
    if self._warned_at is None or step - self._warned_at >= limit:
      self._warned_at = step
      logging.warning("%s", text)
