"""Which generations the checkpoints of a run need."""

from collections.abc import Sequence
from typing import NamedTuple

from realm_jax.checkpoints.manager import CheckpointStore


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
    """The generations in use at these checkpoints."""
    return {named.generation for named in self._of(checkpoints).values()} - {-1}

  def users(self) -> dict[int, list[int]]:
    """The checkpoints that there are, by the generation that each uses."""
    users: dict[int, list[int]] = {}
    for step, named in self._of(self._store.steps()).items():
      users.setdefault(named.generation, []).append(step)
    users.pop(-1, None)
    return users

  def pinned(self) -> set[int]:
    """What the checkpoints that there are need, should a run go on from them.

    A run that waits for generations may want that of any of them.
    """
    steps = self._store.steps()
    waiting = {step for step, named in self._of(steps).items() if named.waits}
    return self.by(steps) | waiting

  def _of(self, checkpoints: Sequence[int]) -> dict[int, _Named]:
    for step in checkpoints:
      if step not in self._known:
        try:
          loop = self._store.restore(step, items=("loop",))["loop"]
        except (ValueError, OSError):
          continue  # Removed meanwhile, or of no trainer.
        self._known[step] = _Named(
          int(loop["generation"]), bool(loop.get("lag_steps", 0))
        )
    return {s: self._known[s] for s in checkpoints if s in self._known}
