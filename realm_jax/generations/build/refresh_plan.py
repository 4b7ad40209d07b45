"""The plan of one partial refresh, made by one process and followed by all."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging
from jaxtyping import Bool, Float, Float32, Int, Int32

from realm_jax.corpus.store import NULL_ROW
from realm_jax.generations.build import drift
from realm_jax.generations.build.drift import Drift
from realm_jax.generations.build.movement import Movement
from realm_jax.generations.build.partial_refresh import (
  PartialRefresh,
  choose,
  gains,
)
from realm_jax.generations.store.manifest import PartialRecord, partial_from

NAME = "plan.npz"
# Stored vectors of which the sample says that they explain less than this of
# what the new ones are: nothing is gained by keeping them.
_LEAST_EXPLAINED = 0.5
_FEWEST_TO_JUDGE = 8
_MOST_AGES = 8
_ROWS_AT_ONCE = 1 << 16
_ARRAYS = ("center", "weight", "shift", "left")

Embed = Callable[[np.ndarray], np.ndarray]


class DamagedPlanError(ValueError):
  """A plan that is not what was written; it can be made again."""


@dataclasses.dataclass(frozen=True)
class Stored:
  """The vectors of an earlier generation, by the rows of this corpus.

  Attributes:
    step: of the generation.
    partials: how many partial ones in a row end with it.
    rows: the row there of each row here; `NULL_ROW` for a new block.
    gather: the vectors of rows there, float32.
    steps: the checkpoints that these were embedded with.
  """

  step: int
  partials: int
  rows: Int[np.ndarray, " N"]
  gather: Callable[[np.ndarray], np.ndarray]
  steps: Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class RefreshPlan:
  """What is embedded, and how the other vectors are mapped.

  Attributes:
    embed: whether each row is embedded anew.
    base_rows: the row of each in the base; `NULL_ROW` for a new block.
    sample_rows: embedded already, …
    sample_vectors: … to these.
    drifts: the map of vectors up to each step, rising.
    record: for the manifest; None where all rows are embedded.
  """

  embed: Bool[np.ndarray, " N"]
  base_rows: Int32[np.ndarray, " N"]
  sample_rows: Int[np.ndarray, " s"]
  sample_vectors: Float32[np.ndarray, "s d"]
  drifts: tuple[tuple[int, Drift], ...]
  record: PartialRecord | None

  @classmethod
  def full(cls, num_blocks: int, dim: int) -> "RefreshPlan":
    """Embeds everything."""
    return cls(
      embed=np.ones(num_blocks, bool),
      base_rows=np.full(num_blocks, NULL_ROW, np.int32),
      sample_rows=np.zeros(0, np.int64),
      sample_vectors=np.zeros((0, dim), np.float32),
      drifts=(),
      record=None,
    )

  def vectors(
    self,
    rows: Int[np.ndarray, " n"],
    *,
    embed: Embed,
    stored: Stored | None,
    step: int,
  ) -> tuple[Float[np.ndarray, "n d"], Int[np.ndarray, " n"]]:
    """The vectors of some rows, and the steps that they were embedded with.

    Args:
      rows: rising.
      embed: the vectors of rising rows, embedded anew.
      stored: the base; None only where everything is embedded.
      step: the checkpoint's.
    """
    vectors = np.empty((len(rows), self.sample_vectors.shape[1]), np.float32)
    steps = np.full(len(rows), step)
    fresh = self.embed[rows]
    place = np.searchsorted(self.sample_rows, rows)
    known = np.isin(rows, self.sample_rows)
    vectors[known] = self.sample_vectors[place[known]]
    missing = fresh & ~known
    if missing.any():
      vectors[missing] = embed(rows[missing])
    if not fresh.all():
      assert stored is not None
      there = self.base_rows[rows[~fresh]]
      steps[~fresh] = stored.steps(there)
      vectors[~fresh] = drifted(
        self.drifts, stored.gather(there), steps[~fresh]
      )
    return vectors, steps

  def save(self, path: Path) -> None:
    """Writes the plan; the format holds no code."""
    arrays: dict[str, Any] = {}
    info = []
    for i, (until, one) in enumerate(self.drifts):
      values: dict[str, Any] = dataclasses.asdict(one)
      for name in _ARRAYS:
        arrays[f"{name}_{i}"] = values.pop(name)
      info.append({"until": until, **values})
    record = None if self.record is None else dataclasses.asdict(self.record)
    with path.open("wb") as file:
      np.savez(
        file,
        embed=self.embed,
        base_rows=self.base_rows,
        sample_rows=self.sample_rows,
        sample_vectors=self.sample_vectors,
        info=np.array(json.dumps({"drifts": info, "record": record})),
        **arrays,
      )

  @classmethod
  def load(cls, path: Path) -> "RefreshPlan":
    """Reads what `save` wrote.

    Raises:
      FileNotFoundError: there is no such file.
      DamagedPlanError: it has changed since.
    """
    try:
      return cls._load(path)
    except FileNotFoundError:
      raise
    except Exception as error:
      # An archive that is damaged anywhere fails in a dozen ways.
      raise DamagedPlanError(f"{path} is no plan ({error!r})") from error

  @classmethod
  def _load(cls, path: Path) -> "RefreshPlan":
    with path.open("rb") as file, np.load(file, allow_pickle=False) as values:
      info = json.loads(str(values["info"]))
      drifts = []
      for i, one in enumerate(info["drifts"]):
        arrays = {name: values[f"{name}_{i}"] for name in _ARRAYS}
        drifts.append((one.pop("until"), Drift(**arrays, **one)))
      return cls(
        embed=values["embed"],
        base_rows=values["base_rows"],
        sample_rows=values["sample_rows"],
        sample_vectors=values["sample_vectors"],
        drifts=tuple(drifts),
        record=partial_from(info["record"]),
      )


def group_of(
  drifts: tuple[tuple[int, Drift], ...], steps: Int[np.ndarray, " n"]
) -> Int[np.ndarray, " n"]:
  """Which of the maps is of vectors of each step."""
  return np.searchsorted([until for until, _ in drifts], steps)


def drifted(
  drifts: tuple[tuple[int, Drift], ...],
  vectors: Float[np.ndarray, "n d"],
  steps: Int[np.ndarray, " n"],
) -> Float[np.ndarray, "n d"]:
  """Stored vectors, each mapped as those of its age are."""
  if not drifts:
    return vectors
  of = group_of(drifts, steps)
  moved = np.empty_like(vectors)
  for i, (_, one) in enumerate(drifts):
    moved[of == i] = one(vectors[of == i])
  return moved


def make_plan(
  config: PartialRefresh,
  stored: Stored,
  *,
  step: int,
  embed: Embed,
  costs: Int[np.ndarray, " N"],
  retrieved: Float[np.ndarray, " N"],
  dim: int,
  normalize: bool,
) -> RefreshPlan:
  """Embeds the sample, and chooses what else is embedded.

  Args:
    config: see `PartialRefresh`.
    stored: the earlier generation.
    step: the checkpoint's.
    embed: the vectors of rising rows, embedded with it.
    costs: the tokens that each row takes.
    retrieved: how often each was, the latest counting most.
    dim: of the vectors.
    normalize: whether they have length 1.
  """
  num_blocks = len(stored.rows)
  everything = RefreshPlan.full(num_blocks, dim)
  # One that is made again, of another corpus, is no further one.
  partials = stored.partials + (stored.step < step)
  if config.full_every is not None and partials >= config.full_every:
    logging.info(
      "generation %d embeds every block, as each %dth does",
      step,
      config.full_every,
    )
    return everything
  is_new = stored.rows == NULL_ROW
  if costs[is_new].sum() > config.fraction * costs.sum():
    logging.info(
      "generation %d embeds every block: %d of %d are new",
      step,
      is_new.sum(),
      num_blocks,
    )
    return everything
  sample = config.sample(num_blocks, seed=step)
  sample_vectors = embed(sample)
  old = ~is_new[sample]
  pairs = sample[old]
  before = stored.gather(stored.rows[pairs])
  after = sample_vectors[old]
  steps = np.full(num_blocks, step)
  for rows in _parts(np.flatnonzero(~is_new)):
    steps[rows] = stored.steps(stored.rows[rows])
  drifts = _fit(config, before, after, steps[pairs], normalize)
  left = np.zeros(len(pairs))
  of = group_of(drifts, steps[pairs])
  for i, (_, one) in enumerate(drifts):
    left[of == i] = one.left
  if _is_of_another(stored, left, after, step):
    return everything
  moved = np.zeros(num_blocks)
  if config.by_movement:
    movement = Movement(before, step - steps[pairs], left)
    for rows in _parts(np.flatnonzero(~is_new)):
      vectors = stored.gather(stored.rows[rows])
      moved[rows] = movement(vectors, step - steps[rows])
  must = is_new.copy()
  must[sample] = True
  choice = choose(
    config,
    costs=costs,
    ages=step - steps,
    must=must,
    gain=gains(
      config, retrieved=retrieved, moved=moved, ages=step - steps, seed=step
    ),
    interval=step - stored.step,
  )
  return RefreshPlan(
    embed=choice.rows,
    base_rows=stored.rows.astype(np.int32),
    sample_rows=sample,
    sample_vectors=sample_vectors,
    drifts=drifts,
    record=PartialRecord(
      base=stored.step,
      partials=partials,
      embedded_blocks=int(choice.rows.sum()),
      embedded_share=round(float(costs[choice.rows].sum() / costs.sum()), 4),
      new_blocks=int(is_new.sum()),
      due_blocks=choice.due,
      sample_blocks=len(sample),
      drift=tuple(_told(until, one) for until, one in drifts),
    ),
  )


def _is_of_another(
  stored: Stored, left: np.ndarray, after: np.ndarray, step: int
) -> bool:
  """Whether the stored vectors say too little of the new ones."""
  if len(left) < _FEWEST_TO_JUDGE:
    return False
  error, spread = np.mean(left**2), np.sum(np.var(after, axis=0))
  if error <= (1 - _LEAST_EXPLAINED) * spread:
    return False
  logging.warning(
    "generation %d embeds every block: the vectors of generation %d are too "
    "far from this checkpoint's (mean squared distance %.3g, and these vary "
    "by %.3g)",
    step,
    stored.step,
    error,
    spread,
  )
  return True


def _parts(rows: np.ndarray) -> list[np.ndarray]:
  return [
    rows[start : start + _ROWS_AT_ONCE]
    for start in range(0, len(rows), _ROWS_AT_ONCE)
  ]


def _fit(
  config: PartialRefresh,
  before: np.ndarray,
  after: np.ndarray,
  steps: np.ndarray,
  normalize: bool,
) -> tuple[tuple[int, Drift], ...]:
  """A map for each age, or for neighbouring ones where pairs are few."""
  if not len(steps):
    return ()
  fewest = max(4 * before.shape[1], len(steps) // _MOST_AGES)
  ages, counts = np.unique(steps, return_counts=True)
  ends, waiting = [], 0
  for age, count in zip(ages.tolist(), counts.tolist(), strict=True):
    waiting += count
    if waiting >= fewest:
      ends.append(age)
      waiting = 0
  # Few that are left over go with the youngest, and so does what is younger
  # than the sample.
  last = np.iinfo(np.int32).max
  ends = [*ends[:-1], last] if ends else [last]
  drifts, begin = [], np.iinfo(np.int32).min
  for end in ends:
    here = (steps > begin) & (steps <= end)
    one = drift.fit(
      before[here],
      after[here],
      normalize=normalize,
      allowed=config.drift_correction,
    )
    drifts.append((end, one))
    begin = end
  return tuple(drifts)


def _told(until: int, one: Drift) -> dict[str, Any]:
  return {
    "until_step": until,
    "pairs": one.pairs,
    "stored": round(one.stored_error, 6),
    "corrected": round(one.error, 6),
    "is_used": one.is_used,
  }
