"""Bootstrap intervals, and a paired randomization test, over questions.

The questions of a test set are a sample: another one of the same size would
give other figures. Both methods are seeded, so that a figure is the same
whenever it is computed. Both take several sets of questions, such as those of
several seeds, which may have unequal sizes: each set is resampled for itself,
and all have the same weight.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from jaxtyping import Float

# Scores by name, a value for each question; NaN where it has none.
Scores = Mapping[str, Float[np.ndarray, "_"]]
LEVEL = 0.95
NUM_RESAMPLES = 1000
NUM_PERMUTATIONS = 10_000
# Numbers that are drawn at once.
_CHUNK = 1 << 22


def bootstrap_intervals(
  *sets: Scores, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> dict[str, list[float]]:
  """Returns percentile intervals of the mean of the sets' means (Efron 1979).

  Each resample draws n of the n questions of a set with replacement, the same
  ones for all scores. A score's interval lies between the quantiles
  (1 − LEVEL) / 2 and (1 + LEVEL) / 2 of its means.
  """
  rng = np.random.default_rng(seed)
  means = np.mean([_resampled(s, num_resamples, rng) for s in sets], axis=0)
  tails = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
  low, high = np.quantile(means, tails, axis=0).tolist()
  return {name: [low[i], high[i]] for i, name in enumerate(sets[0])}


def _resampled(
  scores: Scores, num_resamples: int, rng: np.random.Generator
) -> Float[np.ndarray, "r m"]:
  """Returns the means of all scores in each resample."""
  values = np.stack(list(scores.values()), axis=1)
  present = ~np.isnan(values)
  values = np.where(present, values, 0.0)
  number, parts = len(values), []
  for size in _chunks(num_resamples, number):
    drawn = rng.integers(0, number, (size, number))
    drawn += np.arange(size)[:, None] * number
    counts = np.bincount(drawn.ravel(), minlength=size * number)
    counts = counts.reshape(size, number).astype(float)
    weights = np.maximum(counts @ present.astype(float), 1.0)
    parts.append(counts @ values / weights)
  return np.concatenate(parts)


def permutation_p_values(
  *differences: Scores,
  num_permutations: int = NUM_PERMUTATIONS,
  seed: int = 0,
) -> dict[str, float]:
  """Returns two-sided p-values of a paired randomization test (Fisher 1935).

  If two systems are the same, each question's difference could as well have
  the other sign. The p-value is the share of random signs, the true ones
  included, that give a sum at least as far from 0 as the true ones. The test
  asks whether two systems answer alike as they were trained; how much they
  vary with the seed of training, it does not know.

  Args:
    differences: Differences of two systems' scores, for each set of questions.
    num_permutations: Number of random signs.
    seed: Seed of the signs.
  """
  columns = [
    np.concatenate([np.nan_to_num(s[name]) / len(s[name]) for s in differences])
    for name in differences[0]
  ]
  values = np.stack(columns, axis=1)
  rng = np.random.default_rng(seed)
  # Less a little: sums in another order differ in their last digits.
  limits = np.abs(values.sum(axis=0)) - 1e-9
  as_far = np.zeros(values.shape[1])
  for size in _chunks(num_permutations, len(values)):
    signs = rng.integers(0, 2, (size, len(values)), np.int8) * 2.0 - 1.0
    as_far += (np.abs(signs @ values) >= limits).sum(axis=0)
  shares = (1 + as_far) / (1 + num_permutations)
  return dict(zip(differences[0], shares.tolist(), strict=True))


def _chunks(total: int, num_questions: int) -> Iterator[int]:
  """Yields numbers of resamples that sum to `total` and fit into memory."""
  size = max(_CHUNK // num_questions, 1)
  for start in range(0, total, size):
    yield min(size, total - start)
