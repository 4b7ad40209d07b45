"""REALM's objective, the marginal likelihood, EMDR², and their inputs.

Guu et al. 2020, "REALM: Retrieval-Augmented Language Model Pre-Training" (arXiv
2002.08909), section 3.1. Sachan et al. 2021, "End-to-End Training of
Multi-Document Reader and Retriever for Open-Domain Question Answering" (arXiv
2106.05346).
"""

from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from realm_jax.models import AnyArray
from realm_jax.objectives.weighted import Average, WeightedLoss

Form = Literal["per_token", "joint"]
FORMS = get_args(Form)


class ObjectiveInputs(NamedTuple):
  """Log-probabilities of a batch, by the retriever and by the reader.

  Attributes:
    log_prior: log p(z|x) of the k candidates, including the null block. In the
      objectives of `distillation.py`, −inf leaves a candidate out.
    token_likelihood: log p(y_j|z, x) of the word behind each of m masks.
    weights: 1 for a scored mask, 0 for padding.
    target_likelihood: Scores whose softmax is the target, usually ℓ_z as in
      `likelihood`. They have no gradient, and the reader computes them without
      dropout.
    fused_likelihood: log p(y_j|x, all candidates), if the reader reads all
      candidates at once; otherwise None.

  Example, one masked word to which two candidates give 0.2 and 0.6:
    >>> prior = jnp.log(jnp.array([[0.75, 0.25]]))
    >>> logp = jnp.log(jnp.array([[0.2, 0.6]]))
    >>> inputs = ObjectiveInputs(prior, logp[..., None], jnp.ones((1, 1)), logp)
    >>> jnp.exp(inputs.likelihood)
    Array([[0.2, 0.6]], dtype=float32)
  """

  log_prior: Float[Array, "b k"]
  token_likelihood: Float[Array, "b k m"]
  weights: Float[AnyArray, "b m"]
  target_likelihood: Float[Array, "b k"]
  fused_likelihood: Float[Array, "b m"] | None = None

  @property
  def likelihood(self) -> Float[Array, "b k"]:
    """ℓ_z = Σ_j log p(y_j|z, x), over the masks of an example."""
    return jnp.sum(self.token_likelihood * self.weights[:, None], axis=-1)

  def example_weights(self, form: Form) -> Float[Array, " b"]:
    """Returns the weight of each example in the mean of a loss.

    It is the number of masks in the `per_token` form. In the `joint` form it is
    1 for every example with masks.

    Example:
      >>> masks = jnp.array([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
      >>> none = jnp.zeros((3, 1))
      >>> inputs = ObjectiveInputs(none, jnp.zeros((3, 1, 2)), masks, none)
      >>> print(*map(inputs.example_weights, FORMS))
      [2. 1. 0.] [1. 1. 0.]
    """
    num_masks = jnp.sum(self.weights, axis=-1)
    if form == "per_token":
      return num_masks
    return (num_masks > 0).astype(jnp.float32)


def marginal(
  inputs: ObjectiveInputs, *, form: Form = "per_token"
) -> WeightedLoss:
  """Returns −log p(y|x), from which retriever and reader both learn.

  `per_token` (released code):
    −(1/Σ w_j) Σ_j w_j log Σ_z p(z|x) p(y_j|z, x), over the batch's masks.
  `joint` (paper, equation 1 with section 3.2's product over masks):
    −log Σ_z p(z|x) Π_j p(y_j|z, x), the mean over the examples with masks.

  Example, where p(y|x) = 0.75 · 0.2 + 0.25 · 0.6:
    >>> prior = jnp.log(jnp.array([[0.75, 0.25]]))
    >>> logp = jnp.log(jnp.array([[0.2, 0.6]]))
    >>> inputs = ObjectiveInputs(prior, logp[..., None], jnp.ones((1, 1)), logp)
    >>> jnp.exp(-marginal(inputs).loss.mean)
    Array(0.3, dtype=float32)
  """
  if form == "per_token":
    likelihood = marginal_token_likelihood(inputs)
    return WeightedLoss(Average.of(-likelihood, inputs.weights), {})
  likelihood = jax.nn.logsumexp(inputs.log_prior + inputs.likelihood, axis=1)
  weights = inputs.example_weights(form)
  return WeightedLoss(Average.of(-likelihood, weights), {})


def reader_loss(inputs: ObjectiveInputs, *, form: Form) -> Average:
  """Returns −log p(y|x, all candidates), or `marginal` without a fused reader.

  If p(z|x) has no gradient, only the reader learns from it.

  Example:
    >>> prior = jnp.log(jnp.array([[0.75, 0.25]]))
    >>> logp = jnp.log(jnp.array([[0.2, 0.6]]))
    >>> inputs = ObjectiveInputs(prior, logp[..., None], jnp.ones((1, 1)), logp)
    >>> fused = inputs._replace(fused_likelihood=jnp.log(jnp.array([[0.5]])))
    >>> for one in (inputs, fused):
    ...   print(jnp.exp(-reader_loss(one, form="joint").mean))
    0.3
    0.5
  """
  fused = inputs.fused_likelihood
  if fused is None:
    return marginal(inputs, form=form).loss
  if form == "per_token":
    return Average.of(-fused, inputs.weights)
  likelihood = jnp.sum(fused * inputs.weights, axis=-1)
  return Average.of(-likelihood, inputs.example_weights(form))


def marginal_token_likelihood(inputs: ObjectiveInputs) -> Float[Array, "b m"]:
  """Returns log Σ_z p(z|x) p(y_j|z, x) of the word behind each mask.

  Example:
    >>> prior = jnp.log(jnp.array([[0.75, 0.25]]))
    >>> logp = jnp.log(jnp.array([[0.2, 0.6]]))
    >>> inputs = ObjectiveInputs(prior, logp[..., None], jnp.ones((1, 1)), logp)
    >>> jnp.exp(marginal_token_likelihood(inputs))
    Array([[0.3]], dtype=float32)
  """
  return jax.nn.logsumexp(
    inputs.log_prior[:, :, None] + inputs.token_likelihood, axis=1
  )


def emdr2(inputs: ObjectiveInputs, *, form: Form = "per_token") -> WeightedLoss:
  """Returns EMDR², −log Σ_z p(z|x) SG(p(y|z, x)) − (1/k) Σ_z ℓ_z.

  SG is the stop-gradient: the first term trains only the retriever, with the
  gradient of `marginal` in the same form. The paper writes it for the whole
  answer (`joint`); its code sums over tokens, like `per_token`.

  The second term trains only the reader. In the paper it is log p(y|x, all k
  blocks), and so it is here if the reader reads all blocks at once. A reader
  that sees one block at a time learns equally from each, which is an
  adaptation.

  Example:
    >>> prior = jnp.log(jnp.array([[0.75, 0.25]]))
    >>> logp = jnp.log(jnp.array([[0.2, 0.6]]))
    >>> inputs = ObjectiveInputs(prior, logp[..., None], jnp.ones((1, 1)), logp)
    >>> loss = emdr2(inputs, form="joint")
    >>> {name: f"{mean:.3f}" for name, mean in loss.means().items()}
    {'loss': '2.264', 'retriever_loss': '1.204', 'reader_loss': '1.060'}
  """
  stopped = jax.lax.stop_gradient(inputs.token_likelihood)
  without_reader = inputs._replace(token_likelihood=stopped)
  retriever = marginal(without_reader, form=form).loss
  if inputs.fused_likelihood is not None:
    reader = reader_loss(inputs, form=form)
    return WeightedLoss.of_both(retriever, reader)
  total = -jnp.sum(jnp.mean(inputs.likelihood, axis=-1))
  return WeightedLoss.of_both(retriever, Average(total, retriever.weight))
