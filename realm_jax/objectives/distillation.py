"""Objectives that distill the reader into the retriever.

The retriever minimizes a divergence between p(z|x) and a target distribution
over the same candidates, computed from the reader's likelihoods or attention.
The reader learns from the likelihood given all candidates if it reads them at
once. Otherwise it learns from the marginal likelihood, in which p(z|x) has no
gradient. A frozen reader (`Pretraining.freeze_reader`) does not learn.

Each objective takes the inputs, the `form` of the reader's loss and of the mean
over examples, and the `temperature` of its target, by default the paper's.

Izacard et al. 2022, "Atlas: Few-shot Learning with Retrieval Augmented Language
Models" (arXiv 2208.03299), section 2.2. Shi et al. 2023, "REPLUG:
Retrieval-Augmented Black-Box Language Models" (arXiv 2301.12652), sections 4.1
to 4.3.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from realm_jax.objectives.marginal import Form, ObjectiveInputs, reader_loss
from realm_jax.objectives.weighted import Average, WeightedLoss


def perplexity(
  inputs: ObjectiveInputs, *, form: Form = "per_token", temperature: float = 1.0
) -> WeightedLoss:
  """Returns KL(softmax(ℓ/τ) ‖ p(z|x)), plus the reader's loss (Atlas).

  With τ = 1, as in the paper, the target is the posterior of the block under a
  uniform prior. Atlas' code differs: there ℓ is the mean over the tokens, and τ
  is a setting, by default 0.01.

  For `fid_kd` and `attention_norm`, a fused reader's attention to z takes the
  place of ℓ: the scores of the first token (Izacard and Grave 2021, "Distilling
  Knowledge from Reader to Retriever", arXiv 2012.04584, section 3), or the
  attention times the norm of the values (Atlas' code).

  Example:
    >>> prior = jnp.log(jnp.array([[0.75, 0.25]]))
    >>> logp = jnp.log(jnp.array([[0.2, 0.6]]))
    >>> inputs = ObjectiveInputs(prior, logp[..., None], jnp.ones((1, 1)), logp)
    >>> loss = perplexity(inputs)
    >>> {name: f"{mean:.3f}" for name, mean in loss.means().items()}
    {'loss': '1.753', 'retriever_loss': '0.549', 'reader_loss': '1.204'}
  """
  target = _log_target(inputs, inputs.target_likelihood, temperature)
  divergence = _kl_divergence(target, inputs.log_prior)
  return distilled(inputs, divergence, form=form)


def leave_one_out(
  inputs: ObjectiveInputs, *, form: Form = "per_token", temperature: float = 1.0
) -> WeightedLoss:
  """Returns KL(softmax(−ℓ_{−z}/τ) ‖ p(z|x)), plus the reader's loss (Atlas).

  ℓ_{−z} is the log-likelihood without block z: the worse the reader gets
  without a block, the more the retriever should find it. Atlas' reader reads
  the other k − 1 ≥ 1 blocks at once. For a reader that sees one block at a
  time, it is the marginal over them, ℓ_{−z} = log Σ_{i≠z} p(i|x) e^{ℓ_i} / (1 −
  p(z|x)), with p(i|x) of this step, the dropout of the towers included, and
  without a gradient.

  Example:
    >>> prior = jnp.log(jnp.array([[0.75, 0.25]]))
    >>> logp = jnp.log(jnp.array([[0.2, 0.6]]))
    >>> inputs = ObjectiveInputs(prior, logp[..., None], jnp.ones((1, 1)), logp)
    >>> leave_one_out(inputs).metrics["retriever_loss"].mean
    Array(0.549, dtype=float32)
  """
  log_prior = inputs.log_prior
  joint = log_prior + inputs.target_likelihood
  without = _log_sum_of_others(joint) - _log_sum_of_others(log_prior)
  target = _log_target(inputs, -without, temperature)
  divergence = _kl_divergence(target, log_prior)
  return distilled(inputs, divergence, form=form)


def replug(
  inputs: ObjectiveInputs, *, form: Form = "per_token", temperature: float = 0.1
) -> WeightedLoss:
  """Returns KL(p(z|x) ‖ softmax(e^ℓ/β)), plus the reader's loss (RePlug).

  The target is a softmax of probabilities, not of their logarithms, so blocks
  that make y improbable get nearly equal shares. The direction of the
  divergence follows the paper's first version; a later one writes
  KL(softmax(e^ℓ/β) ‖ p(z|x)). The paper freezes the language model: see
  `freeze_reader` of `Pretraining`. The temperature is β.

  Example:
    >>> prior = jnp.log(jnp.array([[0.75, 0.25]]))
    >>> logp = jnp.log(jnp.array([[0.2, 0.6]]))
    >>> inputs = ObjectiveInputs(prior, logp[..., None], jnp.ones((1, 1)), logp)
    >>> replug(inputs).metrics["retriever_loss"].mean
    Array(2.456, dtype=float32)
  """
  likelihood = jnp.exp(inputs.target_likelihood)
  target = _log_target(inputs, likelihood, temperature)
  divergence = _kl_divergence(inputs.log_prior, target)
  return distilled(inputs, divergence, form=form)


def distilled(
  inputs: ObjectiveInputs, divergence: Float[Array, " b"], *, form: Form
) -> WeightedLoss:
  """Returns the retriever's divergence plus the reader's marginal loss.

  Example:
    >>> prior = jnp.log(jnp.array([[0.75, 0.25]]))
    >>> logp = jnp.log(jnp.array([[0.2, 0.6]]))
    >>> inputs = ObjectiveInputs(prior, logp[..., None], jnp.ones((1, 1)), logp)
    >>> loss = distilled(inputs, jnp.array([0.5]), form="joint")
    >>> loss.loss.mean
    Array(1.704, dtype=float32)
  """
  stopped = jax.lax.stop_gradient(inputs.log_prior)
  reader = reader_loss(inputs._replace(log_prior=stopped), form=form)
  retriever = Average.of(divergence, inputs.example_weights(form))
  return WeightedLoss.of_both(retriever, reader)


def _log_target(
  inputs: ObjectiveInputs, scores: Float[Array, "b k"], temperature: float
) -> Float[Array, "b k"]:
  """Returns log softmax(scores / temperature), without a gradient.

  Candidates that are left out get no probability.
  """
  is_candidate = inputs.log_prior > -jnp.inf
  scores = jnp.where(is_candidate, scores / temperature, -jnp.inf)
  return jax.lax.stop_gradient(jax.nn.log_softmax(scores, axis=-1))


def _kl_divergence(
  log_p: Float[Array, "b k"], log_q: Float[Array, "b k"]
) -> Float[Array, " b"]:
  """Returns KL(p ‖ q) = Σ_z p(z) log p(z) / q(z), in nats.

  Candidates with p(z) = 0 add nothing.
  """
  ratio = jnp.where(log_p > -jnp.inf, log_p - log_q, 0.0)
  return jnp.sum(jnp.exp(log_p) * ratio, axis=-1)


def _log_sum_of_others(x: Float[Array, "b k"]) -> Float[Array, "b k"]:
  """Returns log Σ_{i≠z} e^{x_i} for each z."""
  is_self = jnp.eye(x.shape[1], dtype=bool)
  return jax.nn.logsumexp(jnp.where(is_self, -jnp.inf, x[:, None]), axis=-1)
