"""Bootstrap intervals, and a paired randomization test, over questions.

The questions of a test set are a sample: another one of the same size would
give other figures. Both methods are seeded, so that a figure is the same
whenever it is computed.
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float

from realm_jax.evaluation.scoring.question_scores import Scores

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
  values = np.stack(list(scores.values()), axis=1)
  present = ~np.isnan(values)
  values = np.where(present, values, 0.0)
  rng = np.random.default_rng(seed)
  parts = []
  for size in _chunks(num_resamples, len(values)):
    counts = _draws(rng, size, len(values))
    weights = np.maximum(counts @ present.astype(float), 1.0)
    parts.append(counts @ values / weights)
  tails = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
  low, high = np.quantile(np.concatenate(parts), tails, axis=0).tolist()
  return {name: [low[i], high[i]] for i, name in enumerate(scores)}


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
