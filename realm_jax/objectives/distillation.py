"""Objectives in which the retriever learns from what the reader says.

The reader learns from the marginal likelihood, in which p(z|x) has no gradient.
In most of them, the retriever learns from a divergence between p(z|x) and a
target over the same candidates, which the reader's likelihoods ℓ_z give; in
EMDR², from the marginal likelihood, in which the reader has no gradient. A
reader that is frozen (`Pretraining.freeze_reader`) does not learn at all.

Each of them takes the `form` of the reader's loss, which is that of the mean
over examples as well, and raises a ValueError where there is no such form.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from realm_jax.objectives.marginal import Evidence, marginal
from realm_jax.objectives.weighted import Average, WeightedLoss


def emdr2(evidence: Evidence, *, form: str = "per_token") -> WeightedLoss:
  """Returns −log Σ_z p(z|x) SG(p(y|z, x)) − (1/k) Σ_z ℓ_z.

  Sachan et al. 2021, "End-to-End Training of Multi-Document Reader and
  Retriever for Open-Domain Question Answering" (arXiv 2106.05346).

  SG is the stop-gradient: the first term trains the retriever alone, and its
  gradient is that of `marginal` of the same form. The paper writes it for the
  answer as a whole (`joint`); its code sums tokens as `per_token` does.

  The second term, of the reader alone, is an adaptation. In the paper it is
  log p(y|x, all k blocks) of a reader that reads all of them at once; this
  reader sees one block at a time, and learns from each of them alike.
  """
  stopped = jax.lax.stop_gradient(evidence.token_likelihood)
  without_reader = evidence._replace(token_likelihood=stopped)
  retriever = marginal(without_reader, form=form).loss
  total = -jnp.sum(jnp.mean(evidence.likelihood, axis=-1))
  return WeightedLoss.of_both(retriever, Average(total, retriever.weight))


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


def leave_one_out(
  evidence: Evidence, *, form: str = "per_token", temperature: float = 1.0
) -> WeightedLoss:
  """Returns KL(softmax(−ℓ_{−z}/τ) ‖ p(z|x)), plus the loss of the reader.

  It is LOOP of Izacard et al. 2022, "Atlas: Few-shot Learning with Retrieval
  Augmented Language Models" (arXiv 2208.03299), section 2.2. τ is the
  `temperature`.

  ℓ_{−z} is the log-likelihood without block z, of at least two: the worse the
  reader gets without a block, the more the retriever should find it. Atlas'
  reader reads the other k − 1 blocks at once. For a reader that sees one block
  at a time, it is the marginal over them, ℓ_{−z} = log Σ_{i≠z} p(i|x) e^{ℓ_i} /
  (1 − p(z|x)), with p(i|x) of this step, the dropout of the towers included,
  and without a gradient.
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


def perplexity(
  evidence: Evidence, *, form: str = "per_token", temperature: float = 1.0
) -> WeightedLoss:
  """Returns KL(softmax(ℓ/τ) ‖ p(z|x)), plus the loss of the reader.

  It is PDist of Atlas (see `leave_one_out`). With τ = 1, the paper's, the
  target is the posterior of the block under a uniform prior. Atlas' code
  differs from its paper: ℓ is there the mean over the tokens, and τ, the
  `temperature`, a setting, by default 0.01.
  """
  target = log_target(evidence.target_likelihood, temperature)
  divergence = kl_divergence(target, evidence.log_prior)
  return distilled(evidence, divergence, form=form)


def replug(
  evidence: Evidence, *, form: str = "per_token", temperature: float = 0.1
) -> WeightedLoss:
  """Returns KL(p(z|x) ‖ softmax(e^ℓ/β)), plus the loss of the reader.

  Shi et al. 2023, "REPLUG: Retrieval-Augmented Black-Box Language Models"
  (arXiv 2301.12652), sections 4.1 to 4.3; β, the `temperature`, is 0.1 there.

  The target is a softmax of probabilities, not of their logarithms, so that
  blocks from which y is improbable count alike. The direction is that of the
  first version of the paper; a later version writes KL(softmax(e^ℓ/β) ‖
  p(z|x)). The paper's language model is frozen: see `freeze_reader` of
  `Pretraining`.
  """
  target = log_target(jnp.exp(evidence.target_likelihood), temperature)
  divergence = kl_divergence(evidence.log_prior, target)
  return distilled(evidence, divergence, form=form)
