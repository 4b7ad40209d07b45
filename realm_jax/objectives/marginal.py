"""REALM's objective, the marginal likelihood, EMDR², and their evidence.

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


class Evidence(NamedTuple):
  """What retriever and reader say about a batch of masked sentences.

  Attributes:
    log_prior: log p(z|x) of the k candidates, the null block included; −inf of
      one that is left out, in the objectives of `distillation.py`.
    token_likelihood: log p(y_j|z, x) of the word behind each of m masks.
    weights: 1 where there is a scored mask, 0 at padding.
    target_likelihood: The ℓ_z of `likelihood` from which a target is made, or
      what else the target is a softmax of. It has no gradient, and the reader
      that gives it has no dropout.
    fused_likelihood: log p(y_j|x, all candidates), of a reader that reads them
      all at once; None of one that reads them one by one.

  Example, with two candidates, which give one masked word 0.2 and 0.6:
    >>> prior = jnp.log(jnp.array([[0.75, 0.25]]))
    >>> given = jnp.log(jnp.array([[0.2, 0.6]]))
    >>> evidence = Evidence(prior, given[..., None], jnp.ones((1, 1)), given)
    >>> jnp.exp(evidence.likelihood)
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
    """Returns how much an example counts in a loss of a form.

    In the `per_token` form it counts as often as it has masks; in the `joint`
    form all examples with masks count alike.

    Example:
      >>> masks = jnp.array([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
      >>> none = jnp.zeros((3, 1))
      >>> evidence = Evidence(none, jnp.zeros((3, 1, 2)), masks, none)
      >>> print(*map(evidence.example_weights, FORMS))
      [2. 1. 0.] [1. 1. 0.]
    """
    num_masks = jnp.sum(self.weights, axis=-1)
    if form == "per_token":
      return num_masks
    return (num_masks > 0).astype(jnp.float32)


def marginal(evidence: Evidence, *, form: Form = "per_token") -> WeightedLoss:
  """Returns −log p(y|x), from which retriever and reader both learn.

  `per_token` (released code):
    −(1/Σ w_j) Σ_j w_j log Σ_z p(z|x) p(y_j|z, x), over the batch's masks.
  `joint` (paper, equation 1 with section 3.2's product over masks):
    −log Σ_z p(z|x) Π_j p(y_j|z, x), the mean over the examples with masks.

  Example, where p(y|x) = 0.75 · 0.2 + 0.25 · 0.6:
    >>> prior = jnp.log(jnp.array([[0.75, 0.25]]))
    >>> given = jnp.log(jnp.array([[0.2, 0.6]]))
    >>> evidence = Evidence(prior, given[..., None], jnp.ones((1, 1)), given)
    >>> jnp.exp(-marginal(evidence).loss.mean)
    Array(0.3, dtype=float32)
  """
  if form == "per_token":
    likelihood = marginal_token_likelihood(evidence)
    return WeightedLoss(Average.of(-likelihood, evidence.weights), {})
  likelihood = jax.nn.logsumexp(
    evidence.log_prior + evidence.likelihood, axis=1
  )
  weights = evidence.example_weights(form)
  return WeightedLoss(Average.of(-likelihood, weights), {})


def reader_loss(evidence: Evidence, *, form: Form) -> Average:
  """Returns −log p(y|x, all candidates), or `marginal` of a reader of each.

  Its gradient is the reader's alone if p(z|x) has none.

  Example:
    >>> prior = jnp.log(jnp.array([[0.75, 0.25]]))
    >>> given = jnp.log(jnp.array([[0.2, 0.6]]))
    >>> evidence = Evidence(prior, given[..., None], jnp.ones((1, 1)), given)
    >>> fused = evidence._replace(fused_likelihood=jnp.log(jnp.array([[0.5]])))
    >>> for one in (evidence, fused):
    ...   print(jnp.exp(-reader_loss(one, form="joint").mean))
    0.3
    0.5
  """
  fused = evidence.fused_likelihood
  if fused is None:
    return marginal(evidence, form=form).loss
  if form == "per_token":
    return Average.of(-fused, evidence.weights)
  likelihood = jnp.sum(fused * evidence.weights, axis=-1)
  return Average.of(-likelihood, evidence.example_weights(form))


def marginal_token_likelihood(evidence: Evidence) -> Float[Array, "b m"]:
  """Returns log Σ_z p(z|x) p(y_j|z, x) of the word behind each mask.

  Example:
    >>> prior = jnp.log(jnp.array([[0.75, 0.25]]))
    >>> given = jnp.log(jnp.array([[0.2, 0.6]]))
    >>> evidence = Evidence(prior, given[..., None], jnp.ones((1, 1)), given)
    >>> jnp.exp(marginal_token_likelihood(evidence))
    Array([[0.3]], dtype=float32)
  """
  return jax.nn.logsumexp(
    evidence.log_prior[:, :, None] + evidence.token_likelihood, axis=1
  )


def emdr2(evidence: Evidence, *, form: Form = "per_token") -> WeightedLoss:
  """Returns EMDR², −log Σ_z p(z|x) SG(p(y|z, x)) − (1/k) Σ_z ℓ_z.

  SG is the stop-gradient: the first term trains the retriever alone, and its
  gradient is that of `marginal` of the same form. The paper writes it for the
  answer as a whole (`joint`); its code sums tokens as `per_token` does.

  The second term, of the reader alone, is in the paper log p(y|x, all k blocks)
  of a reader that reads all of them at once, and so it is here of such a
  reader. A reader that sees one block at a time learns from each of them alike,
  which is an adaptation.

  Example:
    >>> prior = jnp.log(jnp.array([[0.75, 0.25]]))
    >>> given = jnp.log(jnp.array([[0.2, 0.6]]))
    >>> evidence = Evidence(prior, given[..., None], jnp.ones((1, 1)), given)
    >>> loss = emdr2(evidence, form="joint")
    >>> {name: f"{mean:.3f}" for name, mean in loss.means().items()}
    {'loss': '2.264', 'retriever_loss': '1.204', 'reader_loss': '1.060'}
  """
  stopped = jax.lax.stop_gradient(evidence.token_likelihood)
  without_reader = evidence._replace(token_likelihood=stopped)
  retriever = marginal(without_reader, form=form).loss
  if evidence.fused_likelihood is not None:
    reader = reader_loss(evidence, form=form)
    return WeightedLoss.of_both(retriever, reader)
  total = -jnp.sum(jnp.mean(evidence.likelihood, axis=-1))
  return WeightedLoss.of_both(retriever, Average(total, retriever.weight))
