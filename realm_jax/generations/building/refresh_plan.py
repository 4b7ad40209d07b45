"""The plan of one partial refresh, the same for all workers."""

import dataclasses
from collections.abc import Callable

import numpy as np
from absl import logging
from jaxtyping import Bool, Float, Float32, Int

from realm_jax.corpus.store import NULL_ROW
from realm_jax.generations.building import drift
from realm_jax.generations.building.drift import DriftCorrection
from realm_jax.generations.building.partial_refresh import (
  PartialRefresh,
  choose_rows,
)
from realm_jax.generations.store.manifest import PartialRecord

# Stored vectors that explain less than this share of the new vectors' variance
# are not worth keeping.
_MIN_EXPLAINED = 0.5
_MIN_PAIRS_TO_JUDGE = 8
_ROWS_PER_READ = 1 << 16

EmbedRows = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class KnownVectors:
  """Vectors that need not be embedded, for the rows of a corpus.

  They are those of a base generation, or of a checkpoint whose run keeps its
  own index.

  Attributes:
    step: Step of that checkpoint, or of the base's.
    partials: Number of partial generations in a row that end with the base.
    rows: Row of each block among the vectors; `NULL_ROW` for a new block.
    gather: Function from rows of the vectors to these, in float32.
    steps: Function from rows to the steps that they were embedded with.
  """

  step: int
  partials: int
  rows: Int[np.ndarray, " N"]
  gather: Callable[[np.ndarray], np.ndarray]
  steps: Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class RefreshPlan:
  """The rows to embed, and how the vectors of the others are corrected.

  The rows of the sample were embedded to make the plan. The `record` is for the
  manifest of a partial refresh. Where all rows are embedded, `base` is None.
  """

  embed: Bool[np.ndarray, " N"]
  base: KnownVectors | None
  sample_rows: Int[np.ndarray, " s"]
  sample_vectors: Float32[np.ndarray, "s d"]
  drift: DriftCorrection
  record: PartialRecord | None

  @classmethod
  def full(cls, num_blocks: int, dim: int) -> "RefreshPlan":
    """Returns the plan that embeds every row."""
    return cls(
      embed=np.ones(num_blocks, bool),
      base=None,
      sample_rows=np.zeros(0, np.int64),
      sample_vectors=np.zeros((0, dim), np.float32),
      drift=DriftCorrection(),
      record=None,
    )

  @classmethod
  def copied(cls, base: KnownVectors, dim: int) -> "RefreshPlan":
    """Returns the plan that takes every vector as it is."""
    full = cls.full(len(base.rows), dim)
    return dataclasses.replace(full, embed=~full.embed, base=base)

  def vectors(
    self, rows: Int[np.ndarray, " n"], *, embed: EmbedRows, step: int
  ) -> tuple[Float[np.ndarray, "n d"], Int[np.ndarray, " n"]]:
    """Returns the vectors of some rows, and the steps they were embedded with.

    The `rows` are in rising order. The function `embed` embeds rows with the
    new checkpoint, of this `step`.
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
    if self.base is not None and not fresh.all():
      copied = self.base.rows[rows[~fresh]]
      steps[~fresh] = self.base.steps(copied)
      vectors[~fresh] = self.drift(self.base.gather(copied), steps[~fresh])
    return vectors, steps


def make_plan(
  config: PartialRefresh,
  base: KnownVectors,
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

  The function `embed` embeds the sample, in rising order, with the checkpoint
  of the `step`. A row takes `costs` tokens to embed, and vectors have dimension
  `dim`, and length 1 with `normalize`.
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
  limit = (1 - _MIN_EXPLAINED) * variance
  if correction.pairs >= _MIN_PAIRS_TO_JUDGE and correction.error > limit:
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
    base=base,
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
        dataclasses.replace(
          one.record,
          stored=round(one.record.stored, 6),
          corrected=round(one.record.corrected, 6),
        )
        for one in correction.maps
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
