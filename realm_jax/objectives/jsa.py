"""Joint stochastic approximation (JSA): blocks drawn from a learnt posterior.

Cao et al. 2025, "Improving End-to-End Training of Retrieval-Augmented
Generation Models via Joint Stochastic Approximation" (JSA-RAG, arXiv
2508.18168); the algorithm is of Xu and Ou 2016 (arXiv 1603.05490) and of Ou and
Song 2020 (arXiv 2005.14001).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from realm_jax.models import AnyArray
from realm_jax.objectives.marginal import Evidence
from realm_jax.objectives.weighted import Average, WeightedLoss


class Proposals(NamedTuple):
  """Blocks that were drawn from q(z|x, y), in the order of a chain.

  Attributes:
    places: Place of each of m proposals in the support of q.
    log_q: log q(z|x, y) with which it was drawn.
    uniforms: Numbers in [0, 1) that decide whether the chain accepts it.
  """

  places: Int[AnyArray, "b m"]
  log_q: Float[AnyArray, "b m"]
  uniforms: Float[AnyArray, "b m"]


def draw(
  key: jax.Array, log_q: Float[Array, "b s"], *, num_proposals: int
) -> Proposals:
  """Draws proposals from q(z|x, y), independently and with replacement."""
  shape = len(log_q), num_proposals
  of_places, of_chain = jax.random.split(key)
  places = jax.random.categorical(of_places, log_q[:, None], shape=shape)
  return Proposals(
    places,
    jnp.take_along_axis(log_q, places, axis=1),
    jax.random.uniform(of_chain, shape),
  )


def _chain(
  log_weights: Float[Array, "b m"], uniforms: Float[AnyArray, "b m"]
) -> tuple[Int[Array, "m b"], Bool[Array, "m b"]]:
  """Runs a chain of Metropolis independence sampling for each example.

  The first proposal is the first state. From the state z, the proposal z' is
  accepted with probability min(1, w(z') / w(z)), w = p(y|z, x) p(z|x) /
  q(z|x, y). The normalizer of p(z|x, y), which is p(y|x), cancels.

  Returns:
    The number of the proposal that is the state after each of m steps, and
    whether each proposal was accepted, as the first one is.
  """

  def move(state: Any, given: Any) -> tuple[Any, Any]:
    place, weight = state
    number, new_weight, log_uniform = given
    accepted = log_uniform < new_weight - weight
    place = jnp.where(accepted, number, place)
    return (place, jnp.where(accepted, new_weight, weight)), (place, accepted)

  size, num_proposals = log_weights.shape
  start = jnp.zeros(size, jnp.int32), jnp.full(size, -jnp.inf)
  numbers = jnp.arange(num_proposals, dtype=jnp.int32)
  return jax.lax.scan(
    move, start, (numbers, log_weights.T, jnp.log(uniforms).T)
  )[1]


def jsa(
  evidence: Evidence,
  *,
  log_prior: Float[Array, "b s"],
  log_posterior: Float[Array, "b s"],
  proposals: Proposals,
  form: str = "per_token",
  burn_in: int = 0,
) -> WeightedLoss:
  """Returns −Σ_t [ℓ_z + log p(z|x) + log q(z|x, y)] / T, z the state after t.

  The states are those of a chain whose stationary distribution is the posterior
  p(z|x, y) ∝ p(z|x) e^ℓ_z on the support. Under it, the gradient of the first
  two terms is that of −log p(y|x) (Fisher's identity), and that of the third is
  the gradient of the inclusive divergence KL(p(z|x, y) ‖ q(z|x, y)). The reader
  learns from ℓ, the retriever from log p, and the posterior from log q.

  p and q are normalized over the support alone, so that the expected gradient
  is that of the joint `marginal` over the support, which may be much larger
  than the number of blocks that are read. docs/training.md tells the biases,
  and how this differs from the paper's code (github.com/Caohy23/JSA-RAG).

  Args:
    evidence: What the reader says of the proposals, in their order. Its
      `log_prior` is not used.
    log_prior: log p(z|x) on the support.
    log_posterior: log q(z|x, y) on it.
    proposals: Blocks that are read.
    form: What the sum over examples is divided by: `per_token` the number of
      masks, `joint` that of examples with masks. The likelihood is in both that
      of all masks of an example, which are read in one block.
    burn_in: Number of first states that are left out; the paper has 0.

  Raises:
    ValueError: There is no such form.
  """
  weights = evidence.example_weights(form)
  of_prior = jnp.take_along_axis(log_prior, proposals.places, axis=1)
  of_posterior = jnp.take_along_axis(log_posterior, proposals.places, axis=1)
  states, accepted = _chain(
    jax.lax.stop_gradient(
      evidence.target_likelihood + of_prior - proposals.log_q
    ),
    proposals.uniforms,
  )
  visits = jax.nn.one_hot(states[burn_in:], len(states)).mean(axis=0)
  has_masks = jnp.sum(evidence.weights, axis=-1) > 0

  def term(log_probs: Float[Array, "b m"]) -> Average:
    by_example = jnp.sum(visits * log_probs, axis=1)
    total = -jnp.sum(jnp.where(has_masks, by_example, 0.0))
    return Average(total, jnp.sum(weights))

  terms = {
    "reader_loss": term(evidence.likelihood),
    "retriever_loss": term(of_prior),
    "posterior_loss": term(of_posterior),
  }
  total = sum((one.total for one in terms.values()), jnp.zeros(()))
  prior = jnp.exp(log_prior)
  surprise = jnp.where(prior > 0, -log_prior, 0.0)
  metrics = {
    "acceptance_rate": Average.of(accepted[1:].mean(axis=0), has_masks),
    "candidate_entropy": Average.of(jnp.sum(prior * surprise, axis=1)),
    "null_probability": Average.of(prior[:, 0]),
  }
  return WeightedLoss(Average(total, jnp.sum(weights)), {**terms, **metrics})
