"""RePlug's LM-supervised retrieval.

Shi et al. 2023, "REPLUG: Retrieval-Augmented Black-Box Language Models" (arXiv
2301.12652), sections 4.1 to 4.3.
"""

import jax.numpy as jnp

from realm_jax.objectives.distillation import (
  distilled,
  kl_divergence,
  log_target,
)
from realm_jax.objectives.marginal import Evidence
from realm_jax.objectives.weighted import WeightedLoss


def replug(
  evidence: Evidence, *, form: str = "per_token", temperature: float = 0.1
) -> WeightedLoss:
  """Returns KL(p(z|x) ‖ softmax(e^ℓ/β)), plus the loss of the reader.

  The target is a softmax of probabilities, not of their logarithms, so that
  blocks from which y is improbable count alike. The direction is that of the
  first version of the paper; a later version writes KL(softmax(e^ℓ/β) ‖
  p(z|x)). The paper's language model is frozen: see `freeze_reader` of
  `Pretraining`.

  Args:
    evidence: What retriever and reader say.
    form: Form of the reader's loss, and of the mean over examples.
    temperature: β, 0.1 in the paper.

  Raises:
    ValueError: There is no such form.
  """
  target = log_target(jnp.exp(evidence.target_likelihood), temperature)
  divergence = kl_divergence(evidence.log_prior, target)
  return distilled(evidence, divergence, form=form)
