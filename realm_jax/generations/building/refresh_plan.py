"""The plan of one partial refresh: one worker makes it, and all follow it."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from absl import logging
from jaxtyping import Bool, Float, Float32, Int, Int32

from realm_jax.corpus.store import NULL_ROW
from realm_jax.generations.building import drift
from realm_jax.generations.building.drift import DriftCorrection, DriftMap
from realm_jax.generations.building.partial_refresh import (
  PartialRefresh,
  choose_rows,
)
from realm_jax.generations.store.manifest import DriftRecord, PartialRecord

FILE_NAME = "plan.npz"
# Stored vectors that explain less than this share of the new vectors' variance
# are not worth keeping.
_MIN_EXPLAINED = 0.5
_MIN_PAIRS_TO_JUDGE = 8
_ROWS_PER_READ = 1 << 16

EmbedRows = Callable[[np.ndarray], np.ndarray]


class DamagedPlanError(ValueError):
  """A plan file that has changed since it was written."""


@dataclasses.dataclass(frozen=True)
class BaseVectors:
  """The vectors of the base generation, for the rows of a corpus.

  Attributes:
    step: Checkpoint step of the base.
    partials: Number of partial generations in a row that end with the base.
    rows: Row of each block in the base; `NULL_ROW` for a new block.
    gather: Function that returns the vectors of rows of the base, in float32.
    steps: Function that returns the checkpoint steps that they were embedded
      with.
  """

  step: int
  partials: int
  rows: Int[np.ndarray, " N"]
  gather: Callable[[np.ndarray], np.ndarray]
  steps: Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class RefreshPlan:
  """The rows to embed, and how the vectors of the others are corrected.

  Attributes:
    embed: Whether each row is embedded.
    base_rows: Row of each block in the base; `NULL_ROW` for a new block.
    sample_rows: Rows that were embedded to make the plan.
    sample_vectors: Vectors of those rows.
    drift: Correction of the copied vectors.
    record: Description for the manifest; None where all rows are embedded.
  """

  embed: Bool[np.ndarray, " N"]
  base_rows: Int32[np.ndarray, " N"]
  sample_rows: Int[np.ndarray, " s"]
  sample_vectors: Float32[np.ndarray, "s d"]
  drift: DriftCorrection
  record: PartialRecord | None

  @classmethod
  def full(cls, num_blocks: int, dim: int) -> "RefreshPlan":
    """Returns the plan that embeds every row."""
    return cls(
      embed=np.ones(num_blocks, bool),
      base_rows=np.full(num_blocks, NULL_ROW, np.int32),
      sample_rows=np.zeros(0, np.int64),
      sample_vectors=np.zeros((0, dim), np.float32),
      drift=DriftCorrection(),
      record=None,
    )

  def vectors(
    self,
    rows: Int[np.ndarray, " n"],
    *,
    embed: EmbedRows,
    base: BaseVectors | None,
    step: int,
  ) -> tuple[Float[np.ndarray, "n d"], Int[np.ndarray, " n"]]:
    """Returns the vectors of some rows, and the steps they were embedded with.

    Args:
      rows: Rows in rising order.
      embed: Function that embeds rows with the new checkpoint.
      base: Vectors to copy; None only where everything is embedded.
      step: Step of the new checkpoint.
    """
    vectors = np.empty((len(rows), self.sample_vectors.shape[1]), np.float32)
    steps = np.full(len(rows), step)
    fresh = self.embed[rows]
    in_sample = np.isin(rows, self.sample_rows)
    sampled = np.searchsorted(self.sample_rows, rows[in_sample])
    vectors[in_sample] = self.sample_vectors[sampled]
    missing = fresh & ~in_sample
    if missing.any():
      vectors[missing] = embed(rows[missing])
    if not fresh.all():
      assert base is not None
      copied = self.base_rows[rows[~fresh]]
      steps[~fresh] = base.steps(copied)
      vectors[~fresh] = self.drift(base.gather(copied), steps[~fresh])
    return vectors, steps

  def save(self, path: Path) -> None:
    """Writes the plan as arrays and JSON; the format holds no code."""
    maps = [one for _, one in self.drift.maps]
    described = [
      {
        "last_step": last_step,
        "pairs": one.pairs,
        "stored_error": one.stored_error,
        "error": one.error,
        "is_used": one.is_used,
        "normalize": one.normalize,
      }
      for last_step, one in self.drift.maps
    ]
    record = None if self.record is None else dataclasses.asdict(self.record)
    with path.open("wb") as file:
      np.savez(
        file,
        embed=self.embed,
        base_rows=self.base_rows,
        sample_rows=self.sample_rows,
        sample_vectors=self.sample_vectors,
        centers=np.array([one.center for one in maps], np.float32),
        weights=np.array([one.weight for one in maps], np.float32),
        shifts=np.array([one.shift for one in maps], np.float32),
        json=np.array(json.dumps({"maps": described, "record": record})),
      )

  @classmethod
  def load(cls, path: Path) -> "RefreshPlan":
    """Reads what `save` wrote.

    Raises:
      FileNotFoundError: There is no such file.
      DamagedPlanError: The file has changed since it was written.
    """
    try:
      return cls._load(path)
    except FileNotFoundError:
      raise
    except Exception as error:
      # A damaged archive raises many types of errors.
      raise DamagedPlanError(
        f"{path} is not a refresh plan ({error!r})"
      ) from error

  @classmethod
  def _load(cls, path: Path) -> "RefreshPlan":
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
      values = json.loads(str(arrays["json"]))
      maps = []
      for center, weight, shift, one in zip(
        arrays["centers"],
        arrays["weights"],
        arrays["shifts"],
        values["maps"],
        strict=True,
      ):
        last_step = one.pop("last_step")
        drift_map = DriftMap(center=center, weight=weight, shift=shift, **one)
        maps.append((last_step, drift_map))
      record = values["record"]
      return cls(
        embed=arrays["embed"],
        base_rows=arrays["base_rows"],
        sample_rows=arrays["sample_rows"],
        sample_vectors=arrays["sample_vectors"],
        drift=DriftCorrection(tuple(maps)),
        record=None if record is None else PartialRecord.from_json(record),
      )


def make_plan(
  config: PartialRefresh,
  base: BaseVectors,
  *,
  step: int,
  embed: EmbedRows,
  costs: Int[np.ndarray, " N"],
  dim: int,
  normalize: bool,
) -> RefreshPlan:
  """Embeds the sample, fits the drift correction and chooses the other rows.

  Every row is embedded where a full generation is due, where new blocks exceed
  the fraction, or where stored vectors say too little about the new ones.

  Args:
    config: Settings of the refresh.
    base: Vectors of the base generation.
    step: Step of the new checkpoint.
    embed: Function that embeds rows, in rising order, with it.
    costs: Number of tokens that each row takes to embed.
    dim: Dimension of the vectors.
    normalize: Whether vectors have length 1.
  """
  num_blocks = len(base.rows)
  # A generation that is replaced for a new corpus version does not count twice.
  partials = base.partials + (base.step < step)
  is_new = base.rows == NULL_ROW
  if reason := _reason_for_all(config, partials, costs, is_new):
    logging.info("generation %d embeds every block: %s", step, reason)
    return RefreshPlan.full(num_blocks, dim)
  sample = config.sample(num_blocks, seed=step)
  sample_vectors = embed(sample)
  has_base = ~is_new[sample]
  pairs = sample[has_base]
  steps = np.full(num_blocks, step)
  for start in range(0, num_blocks, _ROWS_PER_READ):
    rows = np.flatnonzero(~is_new[start : start + _ROWS_PER_READ]) + start
    steps[rows] = base.steps(base.rows[rows])
  new_vectors = sample_vectors[has_base]
  correction = drift.fit_by_age(
    base.gather(base.rows[pairs]),
    new_vectors,
    steps[pairs],
    normalize=normalize,
    identity_only=not config.drift_correction,
  )
  variance = float(np.var(new_vectors, axis=0).sum()) if len(pairs) else 0.0
  if _explains_too_little(correction, variance):
    logging.warning(
      "generation %d embeds every block: the vectors of generation %d are too "
      "far from this checkpoint's (mean squared distance %.3g, variance %.3g)",
      step,
      base.step,
      correction.error,
      variance,
    )
    return RefreshPlan.full(num_blocks, dim)
  required = is_new.copy()
  required[sample] = True
  chosen = choose_rows(
    config,
    costs=costs,
    ages=step - steps,
    required=required,
    interval_steps=step - base.step,
    seed=step,
  )
  return RefreshPlan(
    embed=chosen,
    base_rows=base.rows.astype(np.int32),
    sample_rows=sample,
    sample_vectors=sample_vectors,
    drift=correction,
    record=PartialRecord(
      base=base.step,
      partials=partials,
      embedded_blocks=int(chosen.sum()),
      embedded_share=round(float(costs[chosen].sum() / costs.sum()), 4),
      new_blocks=int(is_new.sum()),
      sample_blocks=len(sample),
      drift=tuple(
        DriftRecord(
          until_step=last_step,
          pairs=one.pairs,
          stored=round(one.stored_error, 6),
          corrected=round(one.error, 6),
          is_used=one.is_used,
        )
        for last_step, one in correction.maps
      ),
    ),
  )


def _reason_for_all(
  config: PartialRefresh,
  partials: int,
  costs: Int[np.ndarray, " N"],
  is_new: Bool[np.ndarray, " N"],
) -> str:
  """Returns why all rows are embedded without a look at vectors, or ""."""
  if config.full_every is not None and partials >= config.full_every:
    return f"full_every={config.full_every}"
  if costs[is_new].sum() > config.fraction * costs.sum():
    return f"{is_new.sum()} of {len(is_new)} are new"
  return ""


def _explains_too_little(correction: DriftCorrection, variance: float) -> bool:
  """Returns whether corrected vectors are too far from re-embedded ones."""
  if correction.pairs < _MIN_PAIRS_TO_JUDGE:
    return False
  return correction.error > (1 - _MIN_EXPLAINED) * variance
