"""Which blocks a generation embeds anew when it does not embed all."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float, Int

# A block that was never retrieved counts as so much of the mean one.
_SELDOM = 0.3


@dataclasses.dataclass(frozen=True)
class PartialRefresh:
  """A part of the corpus is embedded anew for each generation.

  The other vectors are those of the generation before. First come blocks that
  are new, and those whose age would exceed the bound; then those of which most
  is to be had for their tokens: retrieved often, and moved far.

  What is chosen depends on the generations and the counts of retrieved blocks
  that there are at that moment, and so on when the builder comes to it: a run
  that waits for its generations is not deterministic with this.

  Attributes:
    fraction: of the tokens of the corpus, the sample's among them.
    max_age_steps: no vector is older, at the step of its generation; None is
      what it takes to go through the corpus once.
    full_every: each generation so many after the last full one embeds all;
      None never does.
    sample_fraction: blocks embedded first, to see what moved, of all; …
    sample_blocks: … but no more than this.
    by_retrieved: whether blocks that the trainer retrieved come first.
    by_movement: whether those come first whose vectors moved; otherwise the
      oldest.
    drift_correction: whether what is not embedded is mapped to where the sample
      says that it moved, if that is measurably better.
    decay: what a retrieval is worth a checkpoint later.
  """

  fraction: float = 1 / 3
  max_age_steps: int | None = None
  full_every: int | None = None
  sample_fraction: float = 0.1
  sample_blocks: int = 16_384
  by_retrieved: bool = True
  by_movement: bool = True
  drift_correction: bool = True
  decay: float = 0.7

  def __post_init__(self):
    if not 0 < self.fraction < 1:
      raise ValueError(
        f"fraction={self.fraction}; want a part of the corpus, between 0 and "
        "1, or no PartialRefresh at all"
      )
    if not 0 <= self.sample_fraction < self.fraction:
      raise ValueError(
        f"sample_fraction={self.sample_fraction} is to be a part of "
        f"fraction={self.fraction}, from 0 to below it"
      )
    if self.max_age_steps is not None and self.max_age_steps < 1:
      raise ValueError(
        f"max_age_steps={self.max_age_steps}; want at least a step, or None"
      )
    if self.full_every is not None and self.full_every < 1:
      raise ValueError(
        f"full_every={self.full_every}; want every 1st or later, or None"
      )

  def bound(self, interval: int) -> int:
    """The oldest that a vector may be, where generations lie so far apart.

    Where one is made again, 0 apart, what was not too old then is not now.
    """
    if self.max_age_steps is not None:
      return self.max_age_steps
    if not interval:
      return np.iinfo(np.int32).max
    return round(interval / self.fraction)

  def sample(self, num_blocks: int, *, seed: int) -> Int[np.ndarray, " s"]:
    """Rows drawn at random, rising."""
    count = min(self.sample_blocks, int(self.sample_fraction * num_blocks))
    rng = np.random.default_rng(seed)
    return np.sort(rng.choice(num_blocks, count, replace=False))


@dataclasses.dataclass(frozen=True)
class Choice:
  """What is embedded anew.

  Attributes:
    rows: whether each row is, the sample and new ones among them.
    due: how many are for their age alone.
  """

  rows: Bool[np.ndarray, " N"]
  due: int


def choose(
  config: PartialRefresh,
  *,
  costs: Int[np.ndarray, " N"],
  ages: Int[np.ndarray, " N"],
  must: Bool[np.ndarray, " N"],
  gain: Float[np.ndarray, " N"],
  interval: int,
) -> Choice:
  """Chooses rows up to the fraction of all tokens.

  More only where new blocks, or those that are too old already, take more.

  Args:
    config: see `PartialRefresh`.
    costs: the tokens that each row takes.
    ages: of the stored vectors, in steps.
    must: rows that are embedded whatever it costs: new ones, the sample.
    gain: what embedding a row is good for.
    interval: the steps between generations; 0 where the corpus alone has
      changed, so that only what must be and what is too old is embedded.
  """
  budget = config.fraction * costs.sum() - costs[must].sum()
  bound = config.bound(interval)
  rows = must.copy()
  overdue = ~rows & (ages > bound)
  rows |= overdue
  if not interval:
    return Choice(rows, int(overdue.sum()))
  budget -= costs[overdue].sum()
  due = _due(costs, ages, ~rows, bound, interval, budget)
  rows[due] = True
  budget -= costs[due].sum()
  rest = np.flatnonzero(~rows)
  rest = rest[np.argsort(-gain[rest] / costs[rest], kind="stable")]
  rows[rest[np.cumsum(costs[rest]) <= budget]] = True
  return Choice(rows, int(overdue.sum()) + len(due))


def _due(
  costs: np.ndarray,
  ages: np.ndarray,
  waiting: np.ndarray,
  bound: int,
  interval: int,
  budget: float,
) -> Int[np.ndarray, " n"]:
  """The oldest rows, as many as must go now that none is too old later.

  A row of which j generations may still do without can wait for the j-th after
  this one; all that can wait for no longer than that must fit into j
  generations, and what does not fit goes now.
  """
  rows = np.flatnonzero(waiting)
  rows = rows[np.argsort(-ages[rows], kind="stable")]
  later = np.maximum(bound - ages[rows], 0) // interval + 1
  total = np.cumsum(costs[rows])
  needed = total - later * max(budget, 0.0)
  most = needed.max(initial=0.0)
  enough = np.searchsorted(total, most) + 1 if most > 0 else 0
  return rows[: min(enough, np.searchsorted(total, budget, side="right"))]


def gains(
  config: PartialRefresh,
  *,
  retrieved: Float[np.ndarray, " N"],
  moved: Float[np.ndarray, " N"],
  ages: Int[np.ndarray, " N"],
  seed: int,
) -> Float[np.ndarray, " N"]:
  """What embedding each row is good for: how often it is met, times how wrong.

  Args:
    config: which of the two count.
    retrieved: how often each row was.
    moved: how far each vector is thought to be from what it would be.
    ages: of the stored vectors, in steps.
    seed: rows that are equal in all are taken at random.
  """
  rng = np.random.default_rng(seed)
  # Rows of one age are taken at random, not the first of the corpus first.
  gain = moved if config.by_movement else ages + rng.random(len(ages))
  if config.by_retrieved and retrieved.sum() > 0:
    gain = gain * (retrieved + _SELDOM * retrieved.mean())
  return gain
