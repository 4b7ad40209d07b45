"""Which generations the checkpoints of a run need."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from realm_jax.checkpoints.manager import CheckpointStore

# Longer than the files of a checkpoint take to go.
_REMOVAL_SECONDS = 5.0


class UnknownNeedsError(ValueError):
  """It cannot be told which generations a run needs."""


class _Named(NamedTuple):
  """The generation in use at a checkpoint, and whether its run waits."""

  generation: int
  waits: bool


class NamedGenerations:
  """The generations that checkpoints name as in use."""

  def __init__(self, store: CheckpointStore):
    self._store = store
    self._known: dict[int, _Named] = {}

  def by(self, checkpoints: Sequence[int]) -> set[int]:
    """The generations in use at these checkpoints, so far as they are read."""
    return {named.generation for named in self._of(checkpoints).values()} - {-1}

  def users(self) -> dict[int, list[int]]:
    """The checkpoints that there are, by the generation that each uses."""
    users: dict[int, list[int]] = {}
    for step, named in self._of(self._store.steps()).items():
      users.setdefault(named.generation, []).append(step)
    users.pop(-1, None)
    return users

  def pinned(self, *, every: bool = False) -> set[int]:
    """What the checkpoints that there are need, should a run go on from them.

    A run that waits for generations may want that of any of them.

    Args:
      every: whether all checkpoints are of such a run, as for a builder that
        skips none, and would make again what is removed.

    Raises:
      UnknownNeedsError: there is no checkpoint, or one cannot be read.
    """
    steps = self._store.steps()
    if not steps:
      raise UnknownNeedsError(
        f"{self._store.directory} has no checkpoint that says which "
        "generations are needed; give the MODEL_DIR of the run"
      )
    named = self._of(steps)
    for step in steps:
      if step not in named:
        self._require_no_need(step)
    waiting = {step for step, one in named.items() if one.waits}
    if every:
      waiting.update(steps)
    return self.by(steps) | waiting

  def _require_no_need(self, step: int) -> None:
    """That a checkpoint that names nothing is of no trainer, or is going."""
    try:
      if "loop" not in self._store.items(step):
        return
    except (ValueError, OSError):
      pass  # What becomes of it is seen below.
    if not is_removed(self._store, step):
      raise UnknownNeedsError(
        f"checkpoint {step} of {self._store.directory} does not say which "
        "generation it needs, for it cannot be read; remove it, or try again"
      )

  def _of(self, checkpoints: Sequence[int]) -> dict[int, _Named]:
    for step in checkpoints:
      if step not in self._known:
        try:
          loop = self._store.restore(step, items=("loop",))["loop"]
        except (ValueError, OSError):
          continue  # Removed meanwhile, of no trainer, or not readable.
        self._known[step] = _Named(
          int(loop["generation"]), bool(loop.get("lag_steps", 0))
        )
    return {s: self._known[s] for s in checkpoints if s in self._known}


def is_removed(store: CheckpointStore, step: int) -> bool:
  """Whether a checkpoint that did not restore is being removed.

  Its folder goes last, so that it is listed for a moment after its files.
  """
  end = time.monotonic() + _REMOVAL_SECONDS
  while step in store.steps():
    if time.monotonic() > end:
      return False
    time.sleep(0.2)
  return True
