"""The watcher: finds, verifies and loads generations in the background."""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from absl import logging
from etils import epath

from realm_jax.generations.loading import Generation
from realm_jax.generations.manifest import (
  DamagedGenerationError,
  GenerationError,
)
from realm_jax.generations.store import GenerationStore
from realm_jax.storage.local_disk import DiskFullError, explain_full_disk

FOLLOW = ("newest", "next", "none")
# Time after which an awaited generation that was rejected is read again: the
# fault may have been this machine's.
_RETRY_SECONDS = 30.0


class _Rejection(NamedTuple):
  """Why the generation of a manifest cannot be used, and since when.

  The `version` changes with the manifest.
  """

  version: str
  error: GenerationError
  time: float


class GenerationWatcher:
  """Keeps loaded the generation that a run will search next.

  It loads nothing before the first request. All that it returns is verified
  and completely loaded. A generation that cannot be used is logged once.

  Args:
    generations_dir: Directory of the generations, which need not exist yet.
    load: Function that verifies and loads the generation of a step, or raises
      GenerationError.
    follow: Generation to load without a request: the `newest`; the `next` after
      the one in use, for a run that skips none; or `none`.
    poll_seconds: Time between two looks at the directory.
  """

  def __init__(
    self,
    generations_dir: epath.PathLike,
    load: Callable[[int], Generation],
    *,
    follow: str = "newest",
    poll_seconds: float = 1.0,
  ):
    if follow not in FOLLOW:
      raise ValueError(f"follow={follow!r}; want one of {', '.join(FOLLOW)}")
    self._store = GenerationStore(generations_dir)
    self._load = load
    self._follow = follow
    self._poll_seconds = poll_seconds
    self._changed = threading.Condition()
    # `_changed` guards all attributes below.
    self._loaded: dict[int, Generation] = {}
    self._awaited: int | None = None
    self._in_use: int | None = None
    self._rejected: dict[int, _Rejection] = {}
    self._following = False
    self._num_polls = 0
    self._woken = False
    self._error: BaseException | None = None
    self._closed = False
    self._thread = threading.Thread(
      target=self._run, name="generation watcher", daemon=True
    )
    self._thread.start()

  def newest(self) -> Generation | None:
    """Returns the newest loaded generation without waiting, or None."""
    with self._changed:
      self._raise_error()
      if not self._following:
        self._following = True
        self._wake()
      return self._loaded[max(self._loaded)] if self._loaded else None

  def request(self, step: int) -> Generation | None:
    """Has a generation loaded without waiting; returns it once it is loaded."""
    with self._changed:
      self._raise_error()
      if self._awaited != step:
        self._awaited = step
        self._wake()
      return self._loaded.get(step)

  def wait_for(self, step: int, *, timeout: float | None = None) -> Generation:
    """Waits for the generation of exactly this checkpoint step.

    The `timeout` is in seconds; None waits without limit.

    Raises:
      TimeoutError: It did not appear in time.
      GenerationError: It was published and cannot be used.
      DamagedGenerationError: It is damaged; the sidecar may build it again.
    """

    def is_decided() -> bool:
      self._raise_error()
      # An earlier rejection may be of files that were replaced since.
      is_rejected = step in self._rejected and self._num_polls > polls
      return is_rejected or step in self._loaded

    with self._changed:
      self._awaited = step
      self._wake()
      polls = self._num_polls
      try:
        if not self._changed.wait_for(is_decided, timeout):
          raise TimeoutError(
            f"generation {step} did not appear in {self._store.directory} "
            f"within {timeout:.0f} s; is realm_jax.build_index running?"
          )
        if step not in self._loaded:
          error = self._rejected[step].error
          raise type(error)(str(error))
        return self._loaded[step]
      finally:
        self._awaited = None

  def has_later(self, step: int) -> bool:
    """Returns whether a later generation is published and not rejected."""
    published = self._store.versions()
    with self._changed:
      return any(s > step and s not in self._rejected for s in published)

  def in_use(self, step: int) -> None:
    """Sets which generation the run searches; older ones are unloaded."""
    with self._changed:
      self._in_use = step
      self._following = True
      self._wake()

  @property
  def rejected(self) -> dict[int, str]:
    """The reason of each rejection, by the generation's step."""
    with self._changed:
      return {step: str(why.error) for step, why in self._rejected.items()}

  def close(self) -> None:
    """Ends the thread, after a load in progress."""
    with self._changed:
      self._closed = True
      self._wake()
    self._thread.join()

  def __enter__(self) -> "GenerationWatcher":
    return self

  def __exit__(self, *exception: object) -> None:
    self.close()

  def _raise_error(self) -> None:
    if self._error is not None:
      raise self._error
    if self._closed:
      raise ValueError("this watcher is closed")

  def _wake(self) -> None:
    self._woken = True
    self._changed.notify_all()

  def _run(self) -> None:
    last_warning = ""
    try:
      while not self._closed:
        try:
          with explain_full_disk(self._store.directory):
            self._poll()
          last_warning = ""
        except DiskFullError:
          raise  # Nothing that the run does would end it.
        except OSError as error:
          # A file system that fails for a while must not end a long run.
          if str(error) != last_warning:
            logging.warning(
              "cannot follow %s: %s", self._store.directory, error
            )
          last_warning = str(error)
        with self._changed:
          self._num_polls += 1
          self._changed.notify_all()
          self._changed.wait_for(lambda: self._woken, self._poll_seconds)
          self._woken = False
    except BaseException as error:
      with self._changed:
        self._error = error
        self._changed.notify_all()

  def _poll(self) -> None:
    """Loads at most one generation, and unloads those not needed.

    The storage is asked only if a generation may be wanted: of the processes of
    a run, the first follows the newest, and the others are asked for steps.
    """
    with self._changed:
      may_want = self._awaited is not None or (
        self._following and self._follow != "none"
      )
    published = self._store.versions() if may_want else {}
    with self._changed:
      wanted = self._wanted(sorted(published))
    for step in wanted:
      if step not in self._loaded and self._try_load(step, published[step]):
        break
    with self._changed:
      if self._in_use is not None and self._loaded:
        stay = {self._in_use, self._awaited, max(self._loaded)}
        for step in set(self._loaded) - stay:
          del self._loaded[step]

  def _wanted(self, published: list[int]) -> list[int]:
    """Returns what to load, in order; the first valid one suffices."""
    wanted = [self._awaited] if self._awaited in published else []
    # A rejected generation that is awaited does not stop the newest.
    if self._following and self._follow == "newest":
      in_use = -1 if self._in_use is None else self._in_use
      newest = max([in_use, *self._loaded])
      wanted += [step for step in published[::-1] if step > newest]
    in_use = self._in_use
    if self._follow == "next" and self._awaited is None and in_use is not None:
      wanted += [step for step in published if step > in_use][:1]
    return wanted

  def _try_load(self, step: int, version: str) -> bool:
    """Loads a generation, unless the same files were rejected before."""
    with self._changed:
      rejection = self._rejected.get(step)
      if rejection is not None and rejection.version == version:
        age = time.monotonic() - rejection.time
        if step != self._awaited or age <= _RETRY_SECONDS:
          return False
    start = time.monotonic()
    try:
      generation = self._load(step)
    except GenerationError as error:
      if self._store.version(step) != version:
        return False  # Removed or replaced while its files were read.
      logging.warning("generation %d is not used: %s", step, error)
      if isinstance(error, DamagedGenerationError):
        self._store.mark_damaged(step)
      with self._changed:
        self._rejected[step] = _Rejection(version, error, time.monotonic())
        self._changed.notify_all()
      return False
    seconds = time.monotonic() - start
    logging.info("generation %d is verified and loaded (%.1f s)", step, seconds)
    with self._changed:
      self._rejected.pop(step, None)
      self._loaded[step] = generation
      self._changed.notify_all()
    return True
