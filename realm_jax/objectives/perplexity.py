"""Perplexity distillation (PDist) of Atlas.

Izacard et al. 2022, "Atlas: Few-shot Learning with Retrieval Augmented Language
Models" (arXiv 2208.03299), section 2.2.
"""

from realm_jax.objectives.distillation import (
  distilled,
  kl_divergence,
  log_target,
)
from realm_jax.objectives.marginal import Evidence
from realm_jax.objectives.weighted import WeightedLoss


def perplexity(
  evidence: Evidence, *, form: str = "per_token", temperature: float = 1.0
) -> WeightedLoss:
  """Returns KL(softmax(ℓ/τ) ‖ p(z|x)), plus the loss of the reader.

  With τ = 1, the paper's, the target is the posterior of the block under a
  uniform prior. Atlas' code differs from its paper: ℓ is there the mean over
  the tokens, and τ a setting, by default 0.01.

  Args:
    evidence: What retriever and reader say.
    form: Form of the reader's loss, and of the mean over examples.
    temperature: τ.

  Raises:
    ValueError: There is no such form.
  """
  target = log_target(evidence.target_likelihood, temperature)
  divergence = kl_divergence(target, evidence.log_prior)
  return distilled(evidence, divergence, form=form)
