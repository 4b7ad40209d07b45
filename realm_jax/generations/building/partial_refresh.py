"""A partial refresh: what is embedded, and what is copied."""

import dataclasses
from collections.abc import Callable

import numpy as np
from absl import logging
from jaxtyping import Bool, Float, Int

from realm_jax.corpus.store import NULL_ROW
from realm_jax.generations.store.manifest import PartialRecord

_ROWS_PER_READ = 1 << 16


@dataclasses.dataclass(frozen=True)
class PartialRefresh:
  """Re-embeds a part of the corpus for each generation.

  The other vectors are copied from an earlier generation, the base. Blocks that
  the base lacks are embedded first, then those with the oldest vectors.

  The base is whatever is published when the sidecar begins to build, so a run
  that waits for its generations is not deterministic with a partial refresh.

  Attributes:
    fraction: Share of the corpus's tokens to embed.
    max_age_steps: Age that no vector exceeds at the step of its generation.
      None allows the age that a vector reaches when the whole corpus is
      embedded once before its turn comes again.
    full_every: Number of generations after which all blocks are embedded
      again. None never embeds all.
  """

  fraction: float = 1 / 3
  max_age_steps: int | None = None
  full_every: int | None = None

  def __post_init__(self) -> None:
    if not 0 < self.fraction < 1:
      raise ValueError(
        f"fraction={self.fraction}; want a share of the corpus between 0 and "
        "1, or no PartialRefresh at all"
      )
    for name, unit in ("max_age_steps", "step"), ("full_every", "generation"):
      value = getattr(self, name)
      if value is not None and value < 1:
        raise ValueError(f"{name}={value}; want at least 1 {unit}, or None")

  def age_limit(self, interval_steps: int) -> int:
    """Returns the age that a vector must not exceed.

    The steps between the base and the new generation are 0 where only the
    corpus has changed; then no vector has become older.
    """
    if self.max_age_steps is not None:
      return self.max_age_steps
    if not interval_steps:
      return np.iinfo(np.int32).max
    return round(interval_steps / self.fraction)


def choose_rows(
  config: PartialRefresh,
  *,
  costs: Int[np.ndarray, " N"],
  ages: Int[np.ndarray, " N"],
  required: Bool[np.ndarray, " N"],
  interval_steps: int,
  seed: int,
) -> Bool[np.ndarray, " N"]:
  """Chooses the rows to embed: required and overdue ones, then the oldest.

  They cost the configured fraction of all tokens, or more where the required
  and overdue rows alone do.

  The `costs` are numbers of tokens, and the `ages` of stored vectors are in
  steps. Between the base and the new generation lie `interval_steps`; with 0,
  when only the corpus has changed, only required and overdue rows are chosen.
  The seed orders rows of the same age.
  """
  chosen = required | (ages > config.age_limit(interval_steps))
  if not interval_steps:
    return chosen
  budget = config.fraction * costs.sum() - costs[chosen].sum()
  # Without the shuffle, the first blocks of the corpus would always be younger.
  rest = np.random.default_rng(seed).permutation(np.flatnonzero(~chosen))
  rest = rest[np.argsort(-ages[rest], kind="stable")]
  chosen[rest[np.cumsum(costs[rest]) <= budget]] = True
  return chosen


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
  """The rows to embed; the vectors of all others are those of the base.

  The `record` is for the manifest of a partial refresh. Where all rows are
  embedded, `base` is None.
  """

  embed: Bool[np.ndarray, " N"]
  base: KnownVectors | None = None
  record: PartialRecord | None = None

  @classmethod
  def full(cls, num_blocks: int) -> "RefreshPlan":
    """Returns the plan that embeds every row."""
    return cls(np.ones(num_blocks, bool))

  def vectors(
    self,
    rows: Int[np.ndarray, " n"],
    *,
    embed: Callable[[np.ndarray], np.ndarray],
    step: int,
  ) -> tuple[Float[np.ndarray, "n d"], Int[np.ndarray, " n"]]:
    """Returns the vectors of some rows, and the steps they were embedded with.

    The function `embed` embeds rows with the new checkpoint, of this `step`.
    """
    fresh, steps = self.embed[rows], np.full(len(rows), step)
    if self.base is None or fresh.all():
      return embed(rows), steps
    copied = self.base.rows[rows[~fresh]]
    steps[~fresh] = self.base.steps(copied)
    known = self.base.gather(copied)
    vectors = np.empty((len(rows), known.shape[1]), np.float32)
    vectors[~fresh] = known
    if fresh.any():
      vectors[fresh] = embed(rows[fresh])
    return vectors, steps


def make_plan(
  config: PartialRefresh,
  base: KnownVectors,
  *,
  step: int,
  costs: Int[np.ndarray, " N"],
) -> RefreshPlan:
  """Chooses the rows to embed, the same for all workers.

  Every row is embedded where a full generation is due, or where new blocks
  exceed the fraction. A row takes `costs` tokens to embed.
  """
  num_blocks = len(base.rows)
  # A generation that is replaced for a new corpus version does not count twice.
  partials = base.partials + (base.step < step)
  is_new = base.rows == NULL_ROW
  if reason := _reason_for_all(config, partials, costs, is_new):
    logging.info("generation %d embeds every block: %s", step, reason)
    return RefreshPlan.full(num_blocks)
  steps = np.full(num_blocks, step)
  for start in range(0, num_blocks, _ROWS_PER_READ):
    rows = np.flatnonzero(~is_new[start : start + _ROWS_PER_READ]) + start
    steps[rows] = base.steps(base.rows[rows])
  chosen = choose_rows(
    config,
    costs=costs,
    ages=step - steps,
    required=is_new,
    interval_steps=step - base.step,
    seed=step,
  )
  record = PartialRecord(
    base=base.step,
    partials=partials,
    embedded_blocks=int(chosen.sum()),
    embedded_share=round(float(costs[chosen].sum() / costs.sum()), 4),
    new_blocks=int(is_new.sum()),
  )
  return RefreshPlan(chosen, base, record)


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
