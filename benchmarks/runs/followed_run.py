"""A training run followed offline by a sidecar that builds generations."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from realm_jax.generations.building.partial_refresh import PartialRefresh
from realm_jax.generations.building.refresh_plan import KnownVectors, make_plan

_K = 8


@dataclasses.dataclass(frozen=True)
class Run:
  """Vectors of a run at each of its checkpoints.

  Attributes:
    steps: Steps of the checkpoints.
    blocks: Vectors of all blocks, by checkpoint.
    held_out: Vectors of the held-out queries, by checkpoint.
    costs: Number of tokens that each block takes to embed.
    normalize: Whether vectors have length 1.
  """

  steps: tuple[int, ...]
  blocks: Mapping[int, Float[np.ndarray, "N d"]]
  held_out: Mapping[int, Float[np.ndarray, "q d"]]
  costs: Int[np.ndarray, " N"]
  normalize: bool


def nearest(
  queries: Float[np.ndarray, "q d"], blocks: Float[np.ndarray, "N d"]
) -> Int[np.ndarray, "q k"]:
  """Returns the best-scoring blocks of each query, in any order."""
  return np.argpartition(-(queries @ blocks.T), _K, axis=1)[:, :_K]


def recall(
  found: Int[np.ndarray, "q k"], wanted: Int[np.ndarray, "q k"]
) -> float:
  """Returns the share of the wanted blocks that were found."""
  return float((found[:, :, None] == wanted[:, None, :]).any(axis=1).mean())


class Builder:
  """Builds the generations of a run, one after the other."""

  def __init__(self, run: Run, config: PartialRefresh | None):
    self._run = run
    self._config = config
    self.step = run.steps[0]
    self.vectors = run.blocks[self.step]
    self.ages = np.full(len(self.vectors), self.step)
    self.partials = 0
    self.shares: list[float] = []
    self.errors: list[tuple[float, float]] = []

  def build(self, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the vectors of a checkpoint's generation, and their steps."""
    run = self._run
    fresh = run.blocks[step]
    if self._config is None:
      return fresh, np.full(len(fresh), step)
    rows = np.arange(len(fresh))
    base = KnownVectors(
      step=self.step,
      partials=self.partials,
      rows=rows,
      gather=self.vectors.__getitem__,
      steps=self.ages.__getitem__,
    )
    plan = make_plan(
      self._config,
      base,
      step=step,
      embed=fresh.__getitem__,
      costs=run.costs,
      dim=fresh.shape[1],
      normalize=run.normalize,
    )
    self.shares.append(plan.record.embedded_share if plan.record else 1.0)
    if plan.record:
      self.errors += [(d.stored, d.corrected) for d in plan.record.drift]
    return plan.vectors(rows, embed=fresh.__getitem__, step=step)

  def use(self, step: int, made: tuple[np.ndarray, np.ndarray]) -> None:
    """Makes the generation of a checkpoint the base of the next one."""
    self.vectors, self.ages = made
    self.step = step
    self.partials += 1


def _share_left(errors: Sequence[tuple[float, float]]) -> float:
  stored, corrected = np.sum(errors or [(0.0, 0.0)], axis=0)
  return float(corrected / stored) if stored else 1.0


def follow(
  run: Run, *, cadence: int, config: PartialRefresh | None, begin: int
) -> dict[str, Any]:
  """Builds a generation every `cadence` steps; returns the average recall.

  A build takes `cadence` steps, so the generation of one checkpoint is in use
  from the checkpoint at which the next build begins.

  Args:
    run: Run to follow.
    cadence: Steps of a build, a multiple of the distance of checkpoints.
    config: Configuration of a partial refresh; None embeds every block.
    begin: First step at which recall is measured.
  """
  builder = Builder(run, config)
  making = None
  recalls, ages = [], []
  for step in run.steps:
    if step % cadence == 0:
      if making is not None:
        builder.use(*making)
      making = (
        step,
        builder.build(step)
        if step
        else (
          builder.vectors,
          builder.ages,
        ),
      )
    if step >= begin:
      wanted = nearest(run.held_out[step], run.blocks[step])
      found = nearest(run.held_out[builder.step], builder.vectors)
      recalls.append(recall(found, wanted))
      ages.append(step - builder.ages.min())
  return {
    "recall_at_8": float(np.mean(recalls)),
    "embedded_share": float(np.mean(builder.shares or [1.0])),
    "oldest_steps": int(np.max(ages)),
    # Share of the squared error that remains after drift correction.
    "drift_left": _share_left(builder.errors),
  }
