"""Follows the index builder: finds, verifies and loads in the background."""

import hashlib
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from absl import logging
from etils import epath

from realm_jax.generations.follow.loading import Generation
from realm_jax.generations.store import damage_reports as refused
from realm_jax.generations.store import layout
from realm_jax.generations.store.leases import Lease
from realm_jax.generations.store.manifest import (
  DamagedGenerationError,
  GenerationError,
)

FOLLOW = ("newest", "next", "none")
# After so long, what is awaited and was refused is read again: the fault may
# have been the reader's.
_AGAIN_SECONDS = 30.0


class _Refusal(NamedTuple):
  """Why a generation is not used: the manifest's checksum, and when."""

  seen: str
  error: GenerationError
  at: float


class GenerationWatcher:
  """Keeps ready the generation that a run will search next.

  Nothing is loaded before something is asked for. Whatever it hands out has
  been verified and loaded in full. What cannot be used is named once in the
  log, and never searched.

  Args:
    generations_dir: where generations lie; need not exist yet.
    load: verifies and loads a step's generation, or raises GenerationError.
    follow: what to load unasked: the `newest`; the `next` after the one in
      use, for a run that skips none; or `none`.
    poll_seconds: how often to look.
    lease_seconds: how long what is loaded is safe from removal after this
      process dies.
  """

  def __init__(
    self,
    generations_dir: epath.PathLike,
    load: Callable[[int], Generation],
    *,
    follow: str = "newest",
    poll_seconds: float = 1.0,
    lease_seconds: float = 600.0,
  ):
    if follow not in FOLLOW:
      raise ValueError(f"follow={follow!r}; want one of {', '.join(FOLLOW)}")
    self._directory = epath.Path(generations_dir)
    self._load = load
    self._follow = follow
    self._poll_seconds = poll_seconds
    self._lease = Lease(generations_dir, lifetime_seconds=lease_seconds)
    self._changed = threading.Condition()
    # All below are read and written under `_changed`.
    self._loaded: dict[int, Generation] = {}
    self._awaited: int | None = None
    self._in_use: int | None = None
    self._rejected: dict[int, _Refusal] = {}
    self._following = False
    self._looks = 0
    self._woken = False
    self._error: BaseException | None = None
    self._closed = False
    self._thread = threading.Thread(
      target=self._run, name="generation watcher", daemon=True
    )
    self._thread.start()

  def newest(self) -> Generation | None:
    """The newest generation that is loaded, at once; None if there is none."""
    with self._changed:
      self._raise_error()
      if not self._following:
        self._following = True
        self._wake()
      return self._loaded[max(self._loaded)] if self._loaded else None

  def wait_for(self, step: int, *, timeout: float | None = None) -> Generation:
    """The generation of exactly this checkpoint step, as soon as it is loaded.

    Args:
      step: the checkpoint's.
      timeout: seconds to wait; None waits for ever.

    Raises:
      TimeoutError: it did not appear in time.
      GenerationError: it is there and cannot be used.
      DamagedGenerationError: a builder may make it again.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    with self._changed:
      self._awaited = step
      self._wake()
      looks = self._looks
      try:
        while step not in self._loaded:
          self._raise_error()
          # A refusal of before may have been mended since.
          if step in self._rejected and self._looks > looks:
            error = self._rejected[step].error
            raise type(error)(str(error))
          left = None if deadline is None else deadline - time.monotonic()
          if left is not None and left <= 0:
            raise TimeoutError(
              f"generation {step} did not appear in {self._directory} within "
              f"{timeout:.0f} s; is realm_jax.build_index running?"
            )
          self._changed.wait(left)
        self._raise_error()
        return self._loaded[step]
      finally:
        self._awaited = None

  def has_later(self, step: int) -> bool:
    """Whether a later generation is there, and was not refused."""
    published = layout.published_steps(self._directory)
    with self._changed:
      return any(s > step and s not in self._rejected for s in published)

  def in_use(self, step: int) -> None:
    """Says which generation is searched from now on; older ones are let go."""
    with self._changed:
      self._in_use = step
      self._following = True
      self._wake()

  @property
  def rejected(self) -> dict[int, str]:
    """Why each generation that is published and cannot be used is not."""
    with self._changed:
      return {step: str(why.error) for step, why in self._rejected.items()}

  def close(self) -> None:
    """Ends the thread, after the load that it is at, and gives leases back."""
    with self._changed:
      self._closed = True
      self._wake()
    self._thread.join()

  def __enter__(self) -> "GenerationWatcher":
    return self

  def __exit__(self, *exception) -> None:
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
    complaint = ""
    try:
      while not self._closed:
        try:
          self._look()
          complaint = ""
        except OSError as error:
          # A file system that fails for a while must not end a long run.
          if str(error) != complaint:
            logging.warning("cannot follow %s: %s", self._directory, error)
          complaint = str(error)
        with self._changed:
          self._looks += 1
          self._changed.notify_all()
          self._changed.wait_for(lambda: self._woken, self._poll_seconds)
          self._woken = False
    except BaseException as error:
      with self._changed:
        self._error = error
        self._changed.notify_all()
    finally:
      self._lease.release()

  def _look(self) -> None:
    """Loads at most one generation, and lets go of what is not needed."""
    with self._changed:
      awaited, in_use = self._awaited, self._in_use
      held = self._held()
      following = self._following
    published = layout.published_steps(self._directory)
    wanted = [awaited] if awaited in published else []
    # What is awaited and refused keeps nobody from following the newest.
    if following and (awaited is None or self._follow == "newest"):
      wanted += self._unasked(published, held, in_use)
    for step in wanted:
      if step not in self._loaded and self._try_load(step, held=held):
        break
    with self._changed:
      if self._in_use is not None and self._loaded:
        needed = {self._in_use, self._awaited, max(self._loaded)}
        for step in set(self._loaded) - needed:
          del self._loaded[step]
      held = self._held()
    self._hold(held)

  def _unasked(
    self, published: list[int], held: set[int], in_use: int | None
  ) -> list[int]:
    """What to load before anyone asks; the first that is sound will do."""
    if self._follow == "newest":
      return [s for s in published[::-1] if s > max(held, default=-1)]
    if self._follow == "next" and in_use is not None:
      return [s for s in published if s > in_use][:1]
    return []

  def _try_load(self, step: int, *, held: set[int]) -> bool:
    path = layout.path_of(self._directory, step) / layout.MANIFEST
    try:
      seen = hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
      return False  # Removed since it was listed.
    with self._changed:
      refusal = self._rejected.get(step)
      again = (
        step == self._awaited
        and refusal is not None
        and (time.monotonic() - refusal.at > _AGAIN_SECONDS)
      )
      if refusal is not None and refusal.seen == seen and not again:
        return False
    self._hold(held | {step})
    start = time.monotonic()
    try:
      generation = self._load(step)
    except GenerationError as error:
      if not path.exists():
        return False
      logging.warning("generation %d is not used: %s", step, error)
      if isinstance(error, DamagedGenerationError):
        refused.tell(self._directory, step)
      with self._changed:
        self._rejected[step] = _Refusal(seen, error, time.monotonic())
        self._changed.notify_all()
      return False
    logging.info(
      "generation %d is verified and loaded (%.1f s)",
      step,
      time.monotonic() - start,
    )
    with self._changed:
      self._rejected.pop(step, None)
      self._loaded[step] = generation
      self._changed.notify_all()
    return True

  def _held(self) -> set[int]:
    in_use = set() if self._in_use is None else {self._in_use}
    return in_use | set(self._loaded)

  def _hold(self, steps: set[int]) -> None:
    try:
      self._lease.hold(steps)
    except OSError as error:
      logging.log_every_n_seconds(
        logging.WARNING,
        "no lease on generations %s, which a builder may now remove: %s",
        60,
        sorted(steps),
        error,
      )
