"""What the objectives share that train the retriever towards a target.

The retriever learns from a divergence between p(z|x) and a target over the
same candidates, which the reader's likelihoods give. The reader learns from
the marginal likelihood, in which p(z|x) has no gradient. A reader that is
frozen (`Pretraining.freeze_reader`) does not learn at all.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from realm_jax.objectives.marginal import Evidence, marginal
from realm_jax.objectives.weighted import Average, WeightedLoss


def distilled(
  evidence: Evidence,
  scores: Float[Array, "b k"],
  *,
  form: str,
  reverse: bool = False,
) -> WeightedLoss:
  """Returns KL(softmax(scores) ‖ p(z|x)) plus the reader's marginal loss.

  The scores have no gradient. With `reverse`, the divergence is
  KL(p(z|x) ‖ softmax(scores)).

  Raises:
    ValueError: There is no such form.
  """
  target = jax.lax.stop_gradient(jax.nn.log_softmax(scores, axis=-1))
  log_p, log_q = target, evidence.log_prior
  if reverse:
    log_p, log_q = log_q, log_p
  divergence = jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)
  stopped = jax.lax.stop_gradient(evidence.log_prior)
  reader = marginal(evidence._replace(log_prior=stopped), form=form).loss
  retriever = Average.of(divergence, evidence.example_weights(form))
  return WeightedLoss.of_both(retriever, reader)
