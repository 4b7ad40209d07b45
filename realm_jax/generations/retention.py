"""Which generations the checkpoints of a run need."""

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

from realm_jax.checkpoints.store import CheckpointStore, recorded_generation


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

  def of(self, steps: Sequence[int] | None = None) -> dict[int, Use]:
    """Returns the uses at checkpoints, or all, that can be read, by step."""
    steps = self._checkpoints.steps() if steps is None else steps
    for step in set(steps) - set(self._uses):
      # It may be removed meanwhile, or unreadable.
      with contextlib.suppress(ValueError, OSError):
        loop = self._checkpoints.loop_item(step)
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
      raise UnknownNeedsError(
        f"checkpoint {step} of {self._checkpoints.directory} does not say "
        "which generation it needs, for it cannot be read; remove it, or try "
        "again"
      )
    waiting = {step for step, use in uses.items() if use.run_waits}
    used = {use.generation for use in uses.values()}
    pinned = used.union(steps if every else waiting)
    return {step for step in pinned if step is not None}
