"""REALM's objective, the marginal likelihood.

Guu et al. 2020, "REALM: Retrieval-Augmented Language Model Pre-Training" (arXiv
2002.08909), section 3.1.
"""

import jax
from jaxtyping import Array, Float

from realm_jax.objectives.evidence import Evidence
from realm_jax.objectives.weighted import Average, WeightedLoss


def marginal(evidence: Evidence, *, form: str = "per_token") -> WeightedLoss:
  """Returns −log p(y|x), from which retriever and reader both learn.

  `per_token` (released code):
    −(1/Σ w_j) Σ_j w_j log Σ_z p(z|x) p(y_j|z, x), over the batch's masks.
  `joint` (paper, equation 1 with section 3.2's product over masks):
    −log Σ_z p(z|x) Π_j p(y_j|z, x), the mean over the examples with masks.

  Raises:
    ValueError: There is no such form.
  """
  weights = evidence.example_weights(form)
  if form == "per_token":
    likelihood = marginal_token_likelihood(evidence)
    return WeightedLoss(Average.of(-likelihood, evidence.weights), {})
  likelihood = jax.nn.logsumexp(
    evidence.log_prior + evidence.likelihood, axis=1
  )
  return WeightedLoss(Average.of(-likelihood, weights), {})


def marginal_token_likelihood(evidence: Evidence) -> Float[Array, "b m"]:
  """Returns log Σ_z p(z|x) p(y_j|z, x) of the word behind each mask."""
  return jax.nn.logsumexp(
    evidence.log_prior[:, :, None] + evidence.token_likelihood, axis=1
  )
