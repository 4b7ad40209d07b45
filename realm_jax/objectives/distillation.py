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


def log_target(
  scores: Float[Array, "b k"], temperature: float
) -> Float[Array, "b k"]:
  """Returns log softmax(scores / temperature), without a gradient."""
  target = jax.nn.log_softmax(scores / temperature, axis=-1)
  return jax.lax.stop_gradient(target)


def kl_divergence(
  log_p: Float[Array, "b k"], log_q: Float[Array, "b k"]
) -> Float[Array, " b"]:
  """Returns KL(p ‖ q) = Σ_z p(z) log p(z) / q(z), in nats."""
  return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)


def distilled(
  evidence: Evidence, divergence: Float[Array, " b"], *, form: str
) -> WeightedLoss:
  """Returns the retriever's divergence plus the reader's marginal loss."""
  stopped = jax.lax.stop_gradient(evidence.log_prior)
  reader = marginal(evidence._replace(log_prior=stopped), form=form).loss
  retriever = Average.of(divergence, evidence.example_weights(form))
  return WeightedLoss.of_both(retriever, reader)
