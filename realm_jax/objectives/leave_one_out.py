"""Leave-one-out perplexity distillation (LOOP) of Atlas.

Izacard et al. 2022, "Atlas: Few-shot Learning with Retrieval Augmented Language
Models" (arXiv 2208.03299), section 2.2.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from realm_jax.objectives.distillation import (
  distilled,
  kl_divergence,
  log_target,
)
from realm_jax.objectives.marginal import Evidence
from realm_jax.objectives.weighted import WeightedLoss


def leave_one_out(
  evidence: Evidence, *, form: str = "per_token", temperature: float = 1.0
) -> WeightedLoss:
  """Returns KL(softmax(−ℓ_{−z}/τ) ‖ p(z|x)), plus the loss of the reader.

  ℓ_{−z} is the log-likelihood without block z: the worse the reader gets
  without a block, the more the retriever should find it. Atlas' reader reads
  the other k − 1 blocks at once. For a reader that sees one block at a time,
  it is the marginal over them, ℓ_{−z} = log Σ_{i≠z} p(i|x) e^{ℓ_i} / (1 −
  p(z|x)), with p(i|x) of this step, the dropout of the towers included, and
  without a gradient.

  Args:
    evidence: What retriever and reader say, of at least two candidates.
    form: Form of the reader's loss, and of the mean over examples.
    temperature: τ, 1 in the paper.

  Raises:
    ValueError: There is no such form.
  """
  log_prior = evidence.log_prior
  joint = log_prior + evidence.target_likelihood
  without = _log_sum_of_others(joint) - _log_sum_of_others(log_prior)
  target = log_target(-without, temperature)
  divergence = kl_divergence(target, log_prior)
  return distilled(evidence, divergence, form=form)


def _log_sum_of_others(x: Float[Array, "b k"]) -> Float[Array, "b k"]:
  """Returns log Σ_{i≠z} e^{x_i} for each z."""
  is_self = jnp.eye(x.shape[1], dtype=bool)
  return jax.nn.logsumexp(jnp.where(is_self, -jnp.inf, x[:, None]), axis=-1)
