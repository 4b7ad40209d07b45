"""The layers of BERT, over flat tokens."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from realm_jax.models.arrays import AnyArray
from realm_jax.models.attention.choice import attend
from realm_jax.models.attention.inputs import AXES, AttentionInputs, Settings
from realm_jax.models.bert import initializers
from realm_jax.models.bert.activations import activate_and_project
from realm_jax.models.bert.config import BertConfig
from realm_jax.models.bert.layer_norm import LayerNorm
from realm_jax.models.dropout import Dropout, hash_tokens, is_dropping
from realm_jax.models.sequences import Sequences

# Logical axes of hidden states, in flat tokens.
HIDDEN = ("activation_batch", "activation_embed")


def projection_values(config: BertConfig) -> nn.initializers.Initializer:
  """Returns values of a square matrix: normal ones, or near the identity."""
  if config.initialization == "bert":
    return nn.initializers.truncated_normal(config.init_stddev)
  return initializers.near_identity()


def dense(
  config: BertConfig,
  features: int,
  axes: tuple[str, str],
  name: str,
  *,
  init: nn.initializers.Initializer | None = None,
  precision: jax.lax.Precision | None = None,
) -> nn.Dense:
  """Returns a linear layer with logical axes.

  Its initial values are BERT's, unless others are given.
  """
  values = nn.initializers.truncated_normal(config.init_stddev)
  return nn.Dense(
    features,
    dtype=config.dtype,
    precision=precision,
    kernel_init=nn.with_logical_partitioning(init or values, axes),
    bias_init=initializers.zeros("norm" if axes[-1] == "embed" else axes[-1]),
    name=name,
  )


def layer_norm(
  config: BertConfig, name: str, *, epsilon: float | None = None
) -> LayerNorm:
  """Returns a LayerNorm in float32 whose result has the encoder's dtype."""
  return LayerNorm(
    epsilon=config.layer_norm_eps if epsilon is None else epsilon,
    dtype=config.dtype,
    name=name,
  )


class ActivatedDense(nn.Module):
  """An activation and a linear layer back to the hidden size."""

  config: BertConfig

  @nn.compact
  def __call__(self, x: Float[Array, "n i"]) -> Float[Array, "n d"]:
    config = self.config
    size, dtype = config.hidden_size, config.dtype
    init = initializers.normal(config.init_stddev, "mlp", "embed")
    kernel = self.param("kernel", init, (x.shape[-1], size))
    bias = self.param("bias", initializers.zeros("norm"), (size,))
    return activate_and_project(
      config.activation, x, kernel.astype(dtype), bias.astype(dtype)
    )


class HeadProjection(nn.Module):
  """A linear layer to the heads, whose bias attention adds."""

  config: BertConfig

  @nn.compact
  def __call__(
    self, x: Float[Array, "n d"]
  ) -> tuple[Float[Array, "n d"], Float[AnyArray, " d"]]:
    """Returns the product and the bias."""
    config = self.config
    shape = (x.shape[-1], config.hidden_size)
    init = nn.with_logical_partitioning(
      projection_values(config), ("embed", "heads")
    )
    kernel = self.param("kernel", init, shape)
    bias = self.param("bias", initializers.zeros("heads"), shape[1:])
    product = x @ kernel.astype(config.dtype)
    return (
      nn.with_logical_constraint(product, AXES),
      bias.astype(config.dtype),
    )


class SelfAttention(nn.Module):
  """Attention of tokens to the tokens of their own sequence.

  `first` holds the tokens that attend: each row's first few, or all.
  """

  config: BertConfig

  @nn.compact
  def __call__(
    self,
    hidden: Float[Array, "n d"],
    first: Float[Array, "m d"],
    sequences: Sequences,
  ) -> Float[Array, "m d"]:
    config = self.config
    num_queries = len(first) // len(sequences.token_ids)
    query, query_bias = HeadProjection(config, name="query")(first)
    key, key_bias = HeadProjection(config, name="key")(hidden)
    value, value_bias = HeadProjection(config, name="value")(hidden)
    drops = is_dropping(self, config.dropout_rate)
    tokens = sequences.dropout_keys[:, :num_queries]
    context = attend(
      AttentionInputs(
        query,
        key,
        value,
        jnp.stack([query_bias, key_bias, value_bias]),
        sequences.sequence,
        hash_tokens(self, tokens) if drops else tokens,
        sequences.position,
      ),
      Settings(
        head_size=config.hidden_size // config.num_heads,
        max_positions=config.max_positions,
        mask_value=config.attention_mask_value,
        dropout_rate=config.dropout_rate if drops else 0.0,
      ),
      implementation=config.attention,
    )
    axes, init = ("heads", "embed"), projection_values(config)
    output = dense(config, config.hidden_size, axes, "output", init=init)
    return nn.with_logical_constraint(output(context), HIDDEN)


class BertLayer(nn.Module):
  """Attention and feed-forward, normalised after each (post-LN).

  Hidden states come flat, n = r · l tokens: on CPUs XLA's element-wise code
  over three dimensions took four times as long.
  """

  config: BertConfig

  @nn.compact
  def __call__(
    self,
    hidden: Float[Array, "n d"],
    sequences: Sequences,
    *,
    first_only: bool = False,
  ) -> Float[Array, "m d"]:
    """Returns the hidden states of all tokens, or of each row's first."""
    config = self.config
    first, keys = hidden, sequences.dropout_keys
    if first_only:
      first = hidden.reshape(*keys.shape, -1)[:, 0]
      keys = keys[:, :1]
    tokens = keys.reshape(-1)

    rate = config.dropout_rate
    attended = SelfAttention(config, name="attention")(hidden, first, sequences)
    attended = Dropout(rate, name="attention_dropout")(attended, tokens)
    hidden = layer_norm(config, "attention_norm")(first + attended)
    up = dense(config, config.intermediate_size, ("embed", "mlp"), "up")
    inner = nn.with_logical_constraint(
      up(hidden), ("activation_batch", "activation_mlp")
    )
    outer = ActivatedDense(config, name="down")(inner)
    outer = Dropout(rate, name="output_dropout")(outer, tokens)
    hidden = layer_norm(config, "output_norm")(hidden + outer)
    return nn.with_logical_constraint(hidden, HIDDEN)
