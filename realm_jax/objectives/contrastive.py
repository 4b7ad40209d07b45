"""Inverse cloze: find the block that a sentence came from (ORQA, section 4)."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from realm_jax.models import AnyArray
from realm_jax.objectives.weighted import Average, WeightedLoss


def inverse_cloze_loss(
  queries: Float[Array, "n d"],
  blocks: Float[Array, "n d"],
  removed: Bool[AnyArray, " n"],
  *,
  negatives: Float[Array, "n h d"],
  score_scale: float = 1.0,
) -> WeightedLoss:
  """Returns the cross-entropy of each sentence's block among all blocks.

  Among these are its own h ≥ 0 `negatives`.

  −(1/n) Σ_i log softmax_j(f(x_i, z_j))_i, over the **global** batch: under
  `jax.jit` with the batch sharded, the product below gathers all blocks.
  So this loss is not the sum of its parts', each of which would have fewer
  negatives. Micro-batches only embed: see `compared_gradient`.

  Sentences and blocks are in the same order. `removed` tells whether a sentence
  was removed from its block. Accuracy is reported apart: where the sentence
  remains, matching its words is enough.
  """
  # The scores of retrieval are not rounded to bfloat16 on TPUs.
  product = functools.partial(
    jnp.einsum,
    preferred_element_type=jnp.float32,
    precision=jax.lax.Precision.HIGHEST,
  )
  scores = score_scale * product("nd,md->nm", queries, blocks)
  hard = score_scale * product("nd,nhd->nh", queries, negatives)
  scores = jnp.concatenate([scores, hard], axis=1)
  log_probs = jax.nn.log_softmax(scores, axis=-1)
  correct = jnp.argmax(scores, axis=-1) == jnp.arange(scores.shape[0])
  return WeightedLoss(
    Average.of(-jnp.diagonal(log_probs)),
    {
      "accuracy": Average.of(correct),
      "accuracy_removed": Average.of(correct, removed),
      "accuracy_kept": Average.of(correct, ~removed),
    },
  )
