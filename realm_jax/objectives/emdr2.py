"""EMDR²: the retriever learns from the marginal, the reader from each block.

Sachan et al. 2021, "End-to-End Training of Multi-Document Reader and Retriever
for Open-Domain Question Answering" (arXiv 2106.05346).
"""

import jax
import jax.numpy as jnp

from realm_jax.objectives.marginal import Evidence, Form, marginal
from realm_jax.objectives.weighted import Average, WeightedLoss


def emdr2(evidence: Evidence, *, form: Form = "per_token") -> WeightedLoss:
  """Returns −log Σ_z p(z|x) SG(p(y|z, x)) − (1/k) Σ_z ℓ_z.

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
