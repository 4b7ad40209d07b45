"""Settings of a partial refresh, and the choice of the blocks to re-embed."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Int


@dataclasses.dataclass(frozen=True)
class PartialRefresh:
  """Re-embeds a part of the corpus for each generation.

  The other vectors are copied from an earlier generation, the base. Blocks that
  the base lacks are embedded first, then those with the oldest vectors.

  The base is whatever is published when the sidecar begins to build, so a run
  that waits for its generations is not deterministic with a partial refresh.

  Attributes:
    fraction: Share of the corpus's tokens to embed, the sample included.
    max_age_steps: Age that no vector exceeds at the step of its generation.
      None allows the age that a vector reaches when the whole corpus is
      embedded once before its turn comes again.
    full_every: Number of generations after which all blocks are embedded
      again. None never embeds all.
    sample_fraction: Share of the blocks that is drawn at random and embedded
      first, to fit and to judge the drift correction.
    sample_blocks: Upper bound on the size of that sample.
    drift_correction: Whether copied vectors are moved by the affine map that
      fits the sample, where it is measurably better than leaving them.
  """

  fraction: float = 1 / 3
  max_age_steps: int | None = None
  full_every: int | None = None
  sample_fraction: float = 0.1
  sample_blocks: int = 16_384
  drift_correction: bool = True

  def __post_init__(self) -> None:
    if not 0 < self.fraction < 1:
      raise ValueError(
        f"fraction={self.fraction}; want a share of the corpus between 0 and "
        "1, or no PartialRefresh at all"
      )
    if not 0 <= self.sample_fraction < self.fraction:
      raise ValueError(
        f"sample_fraction={self.sample_fraction}; want at least 0 and less "
        f"than fraction={self.fraction}, which includes the sample"
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

  def sample(self, num_blocks: int, *, seed: int) -> Int[np.ndarray, " s"]:
    """Draws the rows of the sample, in rising order."""
    count = min(self.sample_blocks, int(self.sample_fraction * num_blocks))
    rng = np.random.default_rng(seed)
    return np.sort(rng.choice(num_blocks, count, replace=False))


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
