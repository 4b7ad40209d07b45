"""The watcher: finds, verifies and loads generations in the background."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Literal

from absl import logging
from etils import epath

from realm_jax.generations.loading import Generation
from realm_jax.generations.manifest import (
  DamagedGenerationError,
  GenerationError,
)
from realm_jax.generations.store import GenerationStore
from realm_jax.storage.local_disk import explain_full_disk

# Time after which an awaited generation that was rejected is read again: the
# fault may have been this machine's.
_RETRY_SECONDS = 30.0


class GenerationWatcher:
  """Keeps loaded the generation that a run will search next.

  It loads nothing before the first request. All that it returns is verified
  and completely loaded, by a function `load` that raises a GenerationError for
  a step that cannot be used; that is logged once. The directory need not exist
  yet. When a method is called, a thread looks at it, at most every
  `poll_seconds`.

  What `follow` names is loaded without a request: the `newest`; the `next`
  after the one in use, for a run that skips none; or `none`.
  """

  def __init__(
    self,
    generations_dir: epath.PathLike,
    load: Callable[[int], Generation],
    *,
    follow: Literal["newest", "next", "none"] = "newest",
    poll_seconds: float = 1.0,
  ):
    self._store = GenerationStore(generations_dir)
    self._load = load
    self._follow = follow
    self._poll_seconds = poll_seconds
    # What callers set, and the thread reads.
    self._awaited: int | None = None
    self._in_use: int | None = None
    self._following = False
    # What the thread sets, and callers read.
    self._loaded: dict[int, Generation] = {}
    # Of generations that cannot be used: the text that changes with the
    # manifest, the error, and since when.
    self._rejected: dict[int, tuple[str, GenerationError, float]] = {}
    self._thread = ThreadPoolExecutor(1, "generation watcher")
    self._poll: Future[None] | None = None
    self._next_poll = 0.0

  def newest(self) -> Generation | None:
    """Returns the newest loaded generation without waiting, or None."""
    self._following = True
    self.poll()
    loaded = self._loaded
    return loaded[max(loaded)] if loaded else None

  def request(self, step: int) -> Generation | None:
    """Has a generation loaded without waiting; returns it once it is loaded."""
    is_new, self._awaited = self._awaited != step, step
    self.poll(now=is_new)
    return self._loaded.get(step)

  def wait_for(self, step: int, *, timeout: float) -> Generation:
    """Waits for the generation of exactly this step, for `timeout` seconds.

    Raises:
      TimeoutError: It did not appear in time.
      GenerationError: It was published and cannot be used.
      DamagedGenerationError: It is damaged; the sidecar may build it again.
    """
    self._awaited = step
    end = time.monotonic() + timeout
    is_fresh = False
    try:
      while True:
        is_done = False
        if self._poll is not None:
          wait([self._poll], max(0.0, end - time.monotonic()))
          is_done = self._poll.done()
        if step in self._loaded:
          return self._loaded[step]
        # A poll that had begun may have rejected what was replaced since.
        if is_fresh and is_done and step in self._rejected:
          _, error, _ = self._rejected[step]
          raise type(error)(str(error))
        if time.monotonic() >= end:
          raise TimeoutError(
            f"generation {step} did not appear in {self._store.directory} "
            f"within {timeout:.0f} s; is realm_jax.build_index running?"
          )
        if is_fresh:
          time.sleep(self._poll_seconds)
        self.poll(now=True)
        is_fresh = True
    finally:
      self._awaited = None

  def has_later(self, step: int) -> bool:
    """Returns whether a later generation is published and not rejected."""
    published = self._store.steps()
    return any(s > step and s not in self._rejected for s in published)

  def in_use(self, step: int) -> None:
    """Sets which generation the run searches; older ones are unloaded."""
    self._in_use = step
    self._following = True
    self.poll(now=True)

  def poll(self, *, now: bool = False) -> None:
    """Has the thread look for generations; raises what ended the last look."""
    if self._poll is not None:
      if not self._poll.done():
        return
      self._poll.result()
    if now or time.monotonic() >= self._next_poll:
      self._next_poll = time.monotonic() + self._poll_seconds
      self._poll = self._thread.submit(self._look)

  def close(self) -> None:
    """Ends the thread, after a load in progress."""
    self._thread.shutdown()

  def _look(self) -> None:
    """Loads at most one generation, and unloads those not needed."""
    awaited, in_use = self._awaited, self._in_use
    follow = self._follow if self._following else "none"
    # The storage is asked only if a generation may be wanted.
    if awaited is not None or follow != "none":
      try:
        with explain_full_disk(self._store.directory):
          self._load_one(awaited, follow)
      except OSError as error:
        # A file system that fails for a while must not end a long run.
        logging.log_every_n_seconds(
          logging.WARNING,
          "cannot follow %s: %s",
          _RETRY_SECONDS,
          *(self._store.directory, error),
        )
    if in_use is not None and self._loaded:
      stay = {in_use, self._awaited, max(self._loaded)}
      loaded = self._loaded.items()
      self._loaded = {step: one for step, one in loaded if step in stay}

  def _load_one(self, awaited: int | None, follow: str) -> None:
    """Loads the first generation that is wanted and can be used."""
    in_use, published = self._in_use, self._store.versions()
    steps = sorted(published)
    wanted = [awaited] if awaited in published else []
    # A rejected generation that is awaited does not stop the newest.
    if follow == "newest":
      newest = max([-1 if in_use is None else in_use, *self._loaded])
      wanted += [step for step in reversed(steps) if step > newest]
    elif follow == "next" and awaited is None and in_use is not None:
      wanted += [step for step in steps if step > in_use][:1]
    for step in wanted:
      if step not in self._loaded and self._try_load(step, published[step]):
        break

  def _try_load(self, step: int, version: str) -> bool:
    """Loads a generation, unless the same files were rejected before."""
    start = time.monotonic()
    rejected, _, since = self._rejected.get(step, ("", None, 0.0))
    is_again = step == self._awaited and start - since > _RETRY_SECONDS
    if rejected == version and not is_again:
      return False
    try:
      generation = self._load(step)
    except GenerationError as error:
      if self._store.version(step) != version:
        return False  # Removed or replaced while its files were read.
      logging.warning("generation %d is not used: %s", step, error)
      if isinstance(error, DamagedGenerationError):
        self._store.mark_damaged(step)
      self._rejected[step] = version, error, time.monotonic()
      return False
    seconds = time.monotonic() - start
    logging.info("generation %d is verified and loaded (%.1f s)", step, seconds)
    self._rejected.pop(step, None)
    self._loaded = {**self._loaded, step: generation}
    return True
