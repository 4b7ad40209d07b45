"""Bootstrap intervals, and a paired randomization test, over questions.

The questions of a test set are a sample: another one of the same size would
give other figures. Both methods are seeded, so that a figure is the same
whenever it is computed.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from realm_jax.evaluation.scoring.question_scores import Scores

# Scores of several sets of questions, which may have unequal sizes.
Strata = Sequence[Mapping[str, Float[np.ndarray, "_"]]]
LEVEL = 0.95
NUM_RESAMPLES = 1000
NUM_PERMUTATIONS = 10_000
# Numbers that are drawn at once.
_CHUNK = 1 << 22


def bootstrap_intervals(
  scores: Scores, *, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> dict[str, list[float]]:
  """Returns percentile intervals of each score's mean (Efron 1979).

  Each resample draws n of the n questions with replacement, the same ones for
  all scores. A score's interval lies between the quantiles (1 − LEVEL) / 2 and
  (1 + LEVEL) / 2 of its means.
  """
  return bootstrap_intervals_of_strata(
    [scores], num_resamples=num_resamples, seed=seed
  )


def bootstrap_intervals_of_strata(
  strata: Strata, *, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> dict[str, list[float]]:
  """Returns percentile intervals of the mean of several sets' means.

  Each set of questions, such as that of a seed, is resampled for itself, and
  all sets have the same weight.
  """
  rng = np.random.default_rng(seed)
  means = np.mean(
    [_resampled(dict(s), num_resamples, rng) for s in strata], axis=0
  )
  tails = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
  low, high = np.quantile(means, tails, axis=0).tolist()
  return {name: [low[i], high[i]] for i, name in enumerate(strata[0])}


def _resampled(
  scores: Scores, num_resamples: int, rng: np.random.Generator
) -> Float[np.ndarray, "r m"]:
  """Returns the means of all scores in each resample."""
  values = np.stack(list(scores.values()), axis=1)
  present = ~np.isnan(values)
  values = np.where(present, values, 0.0)
  parts = []
  for size in _chunks(num_resamples, len(values)):
    counts = _draws(rng, size, len(values))
    weights = np.maximum(counts @ present.astype(float), 1.0)
    parts.append(counts @ values / weights)
  return np.concatenate(parts)


def permutation_p_values(
  differences: Scores,
  *,
  num_permutations: int = NUM_PERMUTATIONS,
  seed: int = 0,
) -> dict[str, float]:
  """Returns two-sided p-values of a paired randomization test (Fisher 1935).

  If two systems are the same, each question's difference could as well have
  the other sign. The p-value is the share of random signs, the true ones
  counted among them, whose sum is as far from 0 as the true sum.
  """
  values = np.nan_to_num(np.stack(list(differences.values()), axis=1))
  rng = np.random.default_rng(seed)
  # Sums in another order differ in their last bits.
  limits = np.abs(values.sum(axis=0)) - 1e-9
  as_far = np.zeros(values.shape[1])
  for size in _chunks(num_permutations, len(values)):
    signs = rng.integers(0, 2, (size, len(values)), np.int8) * 2.0 - 1.0
    as_far += (np.abs(signs @ values) >= limits).sum(axis=0)
  shares = (1 + as_far) / (1 + num_permutations)
  return dict(zip(differences, shares.tolist(), strict=True))


def permutation_p_values_of_strata(
  strata: Strata,
  *,
  num_permutations: int = NUM_PERMUTATIONS,
  seed: int = 0,
) -> dict[str, float]:
  """Returns p-values of the mean of several sets' mean differences.

  As above, the sign of each question's difference is random, in each set, such
  as that of a seed. All sets have the same weight. The test asks whether two
  systems answer alike as they were trained with these seeds; how much they
  vary with the seed, it does not know.
  """
  weighted = {
    name: np.concatenate(
      [np.nan_to_num(of_set[name]) / len(of_set[name]) for of_set in strata]
    )
    for name in strata[0]
  }
  return permutation_p_values(
    weighted, num_permutations=num_permutations, seed=seed
  )


def _chunks(total: int, num_questions: int) -> Iterator[int]:
  """Yields numbers of resamples that sum to `total` and fit into memory."""
  size = max(_CHUNK // num_questions, 1)
  for start in range(0, total, size):
    yield min(size, total - start)


def _draws(
  rng: np.random.Generator, size: int, num_questions: int
) -> Float[np.ndarray, "size n"]:
  """Returns how often each question is in each of `size` resamples."""
  drawn = rng.integers(0, num_questions, (size, num_questions))
  drawn += np.arange(size)[:, None] * num_questions
  counts = np.bincount(drawn.ravel(), minlength=size * num_questions)
  return counts.reshape(size, num_questions).astype(float)
