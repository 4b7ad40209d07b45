"""A training run followed offline by builders of generations."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from realm_jax.generations.build.movement import Movement
from realm_jax.generations.build.partial_refresh import PartialRefresh
from realm_jax.generations.build.refresh_plan import (
  Stored,
  drifted,
  group_of,
  make_plan,
)

_K = 8


@dataclasses.dataclass(frozen=True)
class Run:
  """Vectors of a run at each of its checkpoints.

  Attributes:
    steps: of the checkpoints.
    blocks: of all blocks, by checkpoint.
    held_out: of the held-out queries, by checkpoint.
    training: of the queries of each step, by checkpoint.
    costs: the tokens that each block takes.
    normalize: whether vectors have length 1.
  """

  steps: tuple[int, ...]
  blocks: Mapping[int, Float[np.ndarray, "N d"]]
  held_out: Mapping[int, Float[np.ndarray, "q d"]]
  training: Mapping[int, Float[np.ndarray, "s b d"]]
  costs: Int[np.ndarray, " N"]
  normalize: bool


def nearest(
  queries: Float[np.ndarray, "q d"], blocks: Float[np.ndarray, "N d"]
) -> Int[np.ndarray, "q k"]:
  """The blocks that score best for each query."""
  return np.argpartition(-(queries @ blocks.T), _K, axis=1)[:, :_K]


def recall(
  found: Int[np.ndarray, "q k"], wanted: Int[np.ndarray, "q k"]
) -> float:
  """How many of the wanted are among the found."""
  return float((found[:, :, None] == wanted[:, None, :]).any(axis=1).mean())


class Builder:
  """Generations of a run, one after the other, and what training does."""

  def __init__(self, run: Run, config: PartialRefresh | None):
    self._run = run
    self._config = config
    self.step = run.steps[0]
    self.vectors = run.blocks[self.step]
    self.ages = np.full(len(self.vectors), self.step)
    self.partials = 0
    self.shares: list[float] = []
    self.errors: list[tuple[float, float]] = []
    self.told: list[float] = []
    self._counts = np.zeros(len(self.vectors))

  def train(self, start: int, stop: int) -> None:
    """Counts what the steps retrieve from the generation in use."""
    queries = self._run.training[self.step][start:stop]
    rows = nearest(queries.reshape(-1, queries.shape[-1]), self.vectors)
    decay = self._config.decay if self._config else 1.0
    self._counts = decay * self._counts + np.bincount(
      rows.reshape(-1), minlength=len(self._counts)
    )

  def build(self, step: int) -> tuple[np.ndarray, np.ndarray]:
    """The vectors of the generation of a checkpoint, and their steps."""
    run = self._run
    fresh = run.blocks[step]
    if self._config is None:
      return fresh, np.full(len(fresh), step)
    rows = np.arange(len(fresh))
    stored = Stored(
      step=self.step,
      partials=self.partials,
      rows=rows,
      gather=self.vectors.__getitem__,
      steps=self.ages.__getitem__,
    )
    embed: Callable[[np.ndarray], np.ndarray] = fresh.__getitem__
    plan = make_plan(
      self._config,
      stored,
      step=step,
      embed=embed,
      costs=run.costs,
      retrieved=self._counts,
      dim=fresh.shape[1],
      normalize=run.normalize,
    )
    self.shares.append(plan.record.embedded_share if plan.record else 1.0)
    if plan.record:
      self.errors += [(d["stored"], d["corrected"]) for d in plan.record.drift]
      self._judge(plan.drifts, plan.sample_rows, step)
    return plan.vectors(rows, embed=embed, stored=stored, step=step)

  def _judge(self, drifts: Any, sample: np.ndarray, step: int) -> None:
    """How well the sample tells the order of the others' movements."""
    if not len(sample):
      return
    fresh = self._run.blocks[step]
    left = np.linalg.norm(
      fresh - drifted(drifts, self.vectors, self.ages), axis=1
    )
    known = np.zeros(len(sample))
    of = group_of(drifts, self.ages[sample])
    for i, (_, one) in enumerate(drifts):
      known[of == i] = one.left
    others = np.setdiff1d(np.arange(len(fresh)), sample)
    ages = step - self.ages
    predicted = Movement(self.vectors[sample], ages[sample], known)(
      self.vectors[others], ages[others]
    )
    self.told.append(_rank_correlation(predicted, left[others]))

  def use(self, step: int, made: tuple[np.ndarray, np.ndarray]) -> None:
    """The generation of a checkpoint takes the place of the one before."""
    self.vectors, self.ages = made
    self.step = step
    self.partials += 1


def _rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
  ranks = [np.argsort(np.argsort(x)).astype(float) for x in (one, other)]
  return float(np.corrcoef(np.stack(ranks))[0, 1])


def _share_left(errors: Sequence[tuple[float, float]]) -> float:
  stored, corrected = np.sum(errors or [(0.0, 0.0)], axis=0)
  return float(corrected / stored) if stored else 1.0


def follow(
  run: Run, *, cadence: int, config: PartialRefresh | None, begin: int
) -> dict[str, Any]:
  """Builds every `cadence` steps, each taking as long; averages recall.

  Args:
    run: what is followed.
    cadence: a multiple of the distance of checkpoints.
    config: of a partial refresh; None embeds every block.
    begin: the first step that counts.
  """
  builder = Builder(run, config)
  making = None
  recalls, ages = [], []
  for before, step in zip((0, *run.steps), run.steps, strict=False):
    builder.train(before, step)
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
    # What is left of the squared error after drift correction.
    "drift_left": _share_left(builder.errors),
    # Rank correlation of the movements that are predicted.
    "movement_told": float(np.mean(builder.told or [0.0])),
  }
