"""The most likely fillings of the masks, under the sum over all candidates."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.special import logsumexp

# Fillings of each candidate that compete for the best under the sum.
_NUM_PROPOSED = 64


class Fillings(NamedTuple):
  """Fillings of m masks, the most likely first.

  Attributes:
    token_ids: Wordpieces.
    log_probabilities: log Σ_z p(z|x) Π_j p(y_j|z,x).
    by_candidate: log Π_j p(y_j|z,x), for each candidate.
  """

  token_ids: Int[np.ndarray, "n m"]
  log_probabilities: Float[np.ndarray, " n"]
  by_candidate: Float[np.ndarray, "n k"]


def most_likely(
  log_probs: Float[np.ndarray, "m v"], num: int
) -> Int[np.ndarray, "n m"]:
  """Returns the `num` most likely fillings of masks that are independent.

  The best of the first j masks are among the best of the first j − 1, each
  with one of the best wordpieces of mask j; so the result is exact.
  """
  num = min(num, log_probs.shape[1])
  token_ids = np.zeros((1, 0), np.int64)
  totals = np.zeros(1)
  for row in log_probs:
    best = np.argpartition(-row, num - 1)[:num]
    sums = totals[:, None] + row[best][None, :]
    order = np.argsort(-sums, axis=None, kind="stable")[:num]
    before, added = np.unravel_index(order, sums.shape)
    token_ids = np.column_stack([token_ids[before], best[added]])
    totals = sums[before, added]
  return token_ids


def log_likelihoods(
  log_probs: Float[np.ndarray, "k m v"], token_ids: Int[np.ndarray, "n m"]
) -> Float[np.ndarray, "n k m"]:
  """Returns log p(y_j|z,x) of fillings, for each candidate and mask."""
  masks = np.arange(log_probs.shape[1])
  return np.moveaxis(log_probs[:, masks, token_ids], 0, 1)


def best_fillings(
  log_prior: Float[np.ndarray, " k"],
  log_probs: Float[np.ndarray, "k m v"],
  num: int,
) -> Fillings:
  """Returns the `num` best fillings under Σ_z p(z|x) Π_j p(y_j|z,x).

  Those compared are the 64 best of each candidate, and the 64 that have the
  most likely wordpieces mask by mask. With a single mask the result is exact.
  """
  mixture = logsumexp(log_prior[:, None, None] + log_probs, axis=0)
  proposed = [most_likely(one, _NUM_PROPOSED) for one in log_probs]
  proposed.append(most_likely(mixture, _NUM_PROPOSED))
  token_ids = np.unique(np.concatenate(proposed), axis=0)
  by_candidate = log_likelihoods(log_probs, token_ids).sum(axis=-1)
  totals = logsumexp(log_prior + by_candidate, axis=1)
  order = np.argsort(-totals, kind="stable")[:num]
  return Fillings(token_ids[order], totals[order], by_candidate[order])
