"""The marginal masked-LM loss of REALM pre-training (section 3.1)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from realm_jax.models import AnyArray
from realm_jax.objectives.weighted import Average, WeightedLoss

FORMS = ("per_token", "joint")


def marginal_masked_lm_loss(
  relevance: Float[Array, "b k"],
  logits: Float[Array, "b k m v"],
  targets: Int[AnyArray, "b m"],
  weights: Float[AnyArray, "b m"],
  *,
  form: str = "per_token",
  has_null: bool = True,
) -> WeightedLoss:
  """Returns −log p(y|x), with p(z|x) the softmax over the candidates.

  `per_token` (released code):
    −(1/Σ w_j) Σ_j w_j log Σ_z p(z|x) p(y_j|z, x), over the batch's masks.
  `joint` (paper, equation 1 with section 3.2's product over masks):
    −log Σ_z p(z|x) Π_j p(y_j|z, x), the mean over the examples with masks.

  The metric `retrieval_utility` is the released code's
  log p(y|x) − log p(y|null, x) for a token; `best_utility` is the same for
  the best single candidate, log p(y|z, x) − log p(y|null, x).
  `log_likelihood` is log p(y|x) for a token, whatever the form, and
  `log_likelihood_null` log p(y|null, x).

  Args:
    relevance: Scores f(x, z).
    logits: Scores of the vocabulary at each mask.
    targets: Ids of the words behind the masks.
    weights: 1 where there is a scored mask, 0 at padding.
    form: Form of the loss, one of the above.
    has_null: Whether candidate 0 is the null block. Without it there are no
      metrics that compare with it.

  Raises:
    ValueError: There is no such form.
  """
  if form not in FORMS:
    raise ValueError(f"form={form!r}; want one of {FORMS}")
  log_prior = jax.nn.log_softmax(relevance, axis=-1)
  log_probs = jax.nn.log_softmax(logits, axis=-1)
  target_log_probs = jnp.take_along_axis(
    log_probs, targets[:, None, :, None], axis=-1
  )[..., 0]
  token_likelihood = jax.nn.logsumexp(
    log_prior[:, :, None] + target_log_probs, axis=1
  )
  if form == "per_token":
    loss = Average.of(-token_likelihood, weights)
  else:
    masks = jnp.sum(target_log_probs * weights[:, None], axis=-1)
    example_likelihood = jax.nn.logsumexp(log_prior + masks, axis=1)
    loss = Average.of(-example_likelihood, jnp.sum(weights, axis=-1) > 0)

  prior = jax.lax.stop_gradient(jnp.exp(log_prior))
  mixture = jnp.einsum(
    "bk,bkmv->bmv", prior, jnp.exp(jax.lax.stop_gradient(log_probs))
  )
  metrics = {
    "masked_accuracy": Average.of(
      jnp.argmax(mixture, axis=-1) == targets, weights
    ),
    "log_likelihood": Average.of(token_likelihood, weights),
    "candidate_entropy": Average.of(-jnp.sum(prior * log_prior, axis=-1)),
  }
  if has_null:
    null = target_log_probs[:, 0]
    best = jnp.max(target_log_probs, axis=1)
    null_correct = jnp.argmax(logits[:, 0], axis=-1) == targets
    metrics |= {
      "masked_accuracy_null": Average.of(null_correct, weights),
      "log_likelihood_null": Average.of(null, weights),
      "retrieval_utility": Average.of(token_likelihood - null, weights),
      "best_utility": Average.of(best - null, weights),
      "null_probability": Average.of(prior[:, 0]),
    }
  return WeightedLoss(loss, metrics)
