"""Retention: which generations the checkpoints of a run still need."""

import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

from etils import epath

from realm_jax.checkpoints.store import CheckpointStore, recorded_generation
from realm_jax.generations.store import layout
from realm_jax.generations.store.leases import leased_steps

# Longer than it takes to delete the files of a checkpoint.
_REMOVAL_SECONDS = 5.0


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


def to_prune(
  generations_dir: epath.PathLike, *, keep: int, pinned: Collection[int] = ()
) -> list[int]:
  """Returns the steps not leased, pinned or among the newest `keep`."""
  if keep < 1:
    raise ValueError(f"keep={keep}; want at least the newest generation, 1")
  old = layout.published_steps(generations_dir)[:-keep]
  stay = set(pinned) | leased_steps(generations_dir) if old else set()
  return [step for step in old if step not in stay]
