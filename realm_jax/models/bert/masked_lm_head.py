"""The head that predicts masked words."""

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from realm_jax.models.arrays import AnyArray
from realm_jax.models.bert import initializers
from realm_jax.models.bert.activations import ACTIVATIONS
from realm_jax.models.bert.config import BertConfig
from realm_jax.models.bert.layers import dense, layer_norm, projection_values


class MaskedLmHead(nn.Module):
  """Dense, activation, LayerNorm, and the tied decoder with its own bias."""

  config: BertConfig

  @nn.compact
  def __call__(
    self, hidden: Float[Array, "*b d"], word_embeddings: Float[AnyArray, "v d"]
  ) -> Float[Array, "*b v"]:
    config = self.config
    axes = ("embed", "embed_out")
    init = projection_values(config)
    layer = dense(config, config.hidden_size, axes, "dense", init=init)
    hidden = layer(hidden)
    hidden = ACTIVATIONS[config.activation].function(hidden)
    hidden = layer_norm(config, "norm")(hidden)
    bias = self.param("bias", initializers.zeros("vocab"), (config.vocab_size,))
    logits = jnp.einsum(
      "...d,vd->...v",
      hidden,
      word_embeddings.astype(config.dtype),
      preferred_element_type=jnp.float32,
    )
    return logits + bias.reshape((1,) * (logits.ndim - 1) + (-1,))
