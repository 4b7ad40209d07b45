"""Inverse cloze: find the block that a sentence came from (ORQA, section 4)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def inverse_cloze_loss(
  queries: Float[Array, "n d"],
  blocks: Float[Array, "n d"],
  removed: Bool[Array, " n"],
  *,
  score_scale: float = 1.0,
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
  """Cross-entropy of each sentence's block against the batch's blocks.

  −(1/n) Σ_i log softmax_j(f(x_i, z_j))_i, over the **global** batch: under
  `jax.jit` with the batch sharded, the product below gathers all blocks.

  Args:
    queries: vectors of the sentences.
    blocks: vectors of their blocks, in the same order.
    removed: whether the sentence was removed from its block; accuracy is
      reported apart for both kinds, as where it stays words can be matched.
    score_scale: multiplies the inner products.

  Returns:
    The loss and the metrics.
  """
  scores = score_scale * jnp.einsum(
    "nd,md->nm", queries, blocks, preferred_element_type=jnp.float32
  )
  log_probs = jax.nn.log_softmax(scores, axis=-1)
  loss = -jnp.mean(jnp.diagonal(log_probs))
  target = jnp.arange(scores.shape[0])
  correct = (jnp.argmax(scores, axis=-1) == target).astype(jnp.float32)

  def accuracy_where(chosen):
    weights = chosen.astype(jnp.float32)
    return jnp.sum(correct * weights) / jnp.maximum(jnp.sum(weights), 1.0)

  return loss, {
    "loss": loss,
    "accuracy": jnp.mean(correct),
    "accuracy_removed": accuracy_where(removed),
    "accuracy_kept": accuracy_where(~removed),
  }
