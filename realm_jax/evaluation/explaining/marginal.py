"""p(y|x) over the candidates of one query, in float64 on the host.

    p(y|x) = Σ_z p(z|x) p(y|z,x),   p(z|x) = softmax of f(x,z)

(Guu et al. 2020, equation 1.) Differentiating log p(y|x) by the scores gives
r(z) = [p(y|z,x) / p(y|x) − 1] p(z|x) (section 3.3): the candidates whose scores
a gradient step would raise, and by how much. With the candidate's share
p(z|x) p(y|z,x) / p(y|x), r(z) is share(z) − p(z|x).
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import log_softmax, logsumexp


class Marginal(NamedTuple):
  """The candidates' parts in p(y|x).

  Attributes:
    log_prior: log p(z|x).
    log_likelihoods: log p(y|z,x); −∞ where a candidate excludes y.
    log_likelihood: log p(y|x); −∞ if every candidate excludes y.
    shares: Each candidate's share of p(y|x), with sum 1; None if p(y|x) is 0.
    rewards: r(z), with sum 0; None if p(y|x) is 0.
  """

  log_prior: Float[np.ndarray, " k"]
  log_likelihoods: Float[np.ndarray, " k"]
  log_likelihood: float
  shares: Float[np.ndarray, " k"] | None
  rewards: Float[np.ndarray, " k"] | None

  def share(self, k: int) -> float | None:
    """Returns a candidate's share; None if p(y|x) is 0."""
    return None if self.shares is None else float(self.shares[k])

  def reward(self, k: int) -> float | None:
    """Returns a candidate's r(z); None if p(y|x) is 0."""
    return None if self.rewards is None else float(self.rewards[k])


def marginalize(
  scores: Float[np.ndarray, " k"], log_likelihoods: Float[np.ndarray, " k"]
) -> Marginal:
  """Sums p(z|x) p(y|z,x) over candidates with scores f(x,z), in log space."""
  log_prior = log_softmax(np.asarray(scores, np.float64))
  log_likelihoods = np.asarray(log_likelihoods, np.float64)
  joint = log_prior + log_likelihoods
  total = float(logsumexp(joint))
  if total == -np.inf:
    return Marginal(log_prior, log_likelihoods, total, None, None)
  shares = np.exp(joint - total)
  rewards = shares - np.exp(log_prior)
  return Marginal(log_prior, log_likelihoods, total, shares, rewards)
