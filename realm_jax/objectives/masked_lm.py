"""The marginal masked-LM loss of REALM pre-training (section 3.1)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

FORMS = ("per_token", "joint")


def marginal_masked_lm_loss(
  relevance: Float[Array, "b k"],
  logits: Float[Array, "b k m v"],
  targets: Int[Array, "b m"],
  weights: Float[Array, "b m"],
  *,
  form: str = "per_token",
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
  """−log p(y|x), with p(z|x) the softmax over the candidates.

  `per_token` (released code):
    −(1/Σ w_j) Σ_j w_j log Σ_z p(z|x) p(y_j|z, x), over the batch's masks.
  `joint` (paper, equation 1 with section 3.2's product over masks):
    −log Σ_z p(z|x) Π_j p(y_j|z, x), the mean over the examples with masks.

  Args:
    relevance: f(x, z); candidate 0 is the null block.
    logits: of the words behind the masks.
    targets: the ids of those words.
    weights: 1 where there is a scored mask, 0 at padding.
    form: `per_token` or `joint`.

  Returns:
    The loss and the metrics. `retrieval_utility` is the released code's
    log p(y|x) − log p(y|null, x) for a token; `best_utility` the same for the
    best single candidate, log p(y|z, x) − log p(y|null, x).

  Raises:
    ValueError: no such form.
  """
  if form not in FORMS:
    raise ValueError(f"form={form!r}; want one of {FORMS}")
  log_prior = jax.nn.log_softmax(relevance, axis=-1)
  log_probs = jax.nn.log_softmax(logits, axis=-1)
  of_target = jnp.take_along_axis(
    log_probs, targets[:, None, :, None], axis=-1
  )[..., 0]
  of_token = jax.nn.logsumexp(log_prior[:, :, None] + of_target, axis=1)
  total = jnp.maximum(jnp.sum(weights), 1.0)

  def mean_of_masks(values):
    return jnp.sum(values * weights) / total

  if form == "per_token":
    loss = -mean_of_masks(of_token)
  else:
    of_masks = jnp.sum(of_target * weights[:, None], axis=-1)
    of_example = jax.nn.logsumexp(log_prior + of_masks, axis=1)
    has_masks = (jnp.sum(weights, axis=-1) > 0).astype(jnp.float32)
    loss = -jnp.sum(of_example * has_masks) / jnp.maximum(
      jnp.sum(has_masks), 1.0
    )

  prior = jax.lax.stop_gradient(jnp.exp(log_prior))
  mixture = jnp.einsum(
    "bk,bkmv->bmv", prior, jnp.exp(jax.lax.stop_gradient(log_probs))
  )

  def accuracy(scores):
    return mean_of_masks(jnp.argmax(scores, axis=-1) == targets)

  return loss, {
    "loss": loss,
    "masked_accuracy": accuracy(mixture),
    "masked_accuracy_null": accuracy(logits[:, 0]),
    "retrieval_utility": mean_of_masks(of_token - of_target[:, 0]),
    "best_utility": mean_of_masks(jnp.max(of_target, axis=1) - of_target[:, 0]),
    "null_probability": jnp.mean(prior[:, 0]),
    "candidate_entropy": -jnp.mean(jnp.sum(prior * log_prior, axis=-1)),
  }
