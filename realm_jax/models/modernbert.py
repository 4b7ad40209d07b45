"""ModernBERT (Warner et al. 2024, arXiv 2412.13663), for towers and readers.

Gin files import this module and bind `modernbert.ModernBertConfig`, which can
replace any `BertConfig`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from realm_jax.errors import RealmError
from realm_jax.models import AnyArray, attention
from realm_jax.models.bert import (
  ACTIVATIONS,
  HIDDEN,
  Activation,
  BertConfig,
  SelfAttention,
  apply_layers,
  dense,
  inner_states,
  layer_norm,
  require_positions,
)
from realm_jax.models.dropout import Dropout
from realm_jax.models.sequences import Sequences
from realm_jax.settings import DropoutRate, PositiveFloat, PositiveInt


@dataclasses.dataclass(frozen=True)
class ModernBertConfig(BertConfig):
  """Sizes and numerical choices of one ModernBERT encoder.

  The defaults are for ModernBERT-base. LayerNorm precedes attention and the
  gated feed-forward layer. There are no biases and no token types, and
  positions are rotary.

  Attributes:
    global_every: Distance between layers with global attention, beginning with
      the first layer.
    local_window: Number of tokens, half of them on either side, to which tokens
      attend in the other layers.
    global_theta, local_theta: Bases of the rotary wavelengths in global and
      local layers.
  """

  num_layers: PositiveInt = 22
  intermediate_size: PositiveInt = 1152
  max_positions: PositiveInt = 8192
  layer_norm_eps: PositiveFloat = 1e-5
  dropout_rate: DropoutRate = 0.0
  activation: Activation = "gelu"
  attention_mask_value: float = float(jnp.finfo(jnp.float32).min)
  global_every: PositiveInt = 3
  local_window: PositiveInt = 128
  global_theta: PositiveFloat = 160_000.0
  local_theta: PositiveFloat = 10_000.0
  has_biases: ClassVar[bool] = False

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.hidden_size // self.num_heads % 2:
      raise RealmError(
        f"hidden_size={self.hidden_size} and num_heads={self.num_heads} make "
        "heads of an odd size, whose halves rotary positions cannot rotate"
      )

  @property
  def encoder(self) -> "Callable[..., ModernBertEncoder]":
    """The encoder's class."""
    return ModernBertEncoder


class _Layer(nn.Module):
  """Attention and a gated feed-forward layer, each after a LayerNorm.

  Hidden states are flat, as in `BertLayer`. Attention in the first layer, whose
  input is already normalized, has no LayerNorm.
  """

  config: ModernBertConfig

  @nn.compact
  def __call__(
    self,
    hidden: Float[Array, "n d"],
    first: Float[Array, "m d"],
    sequences: Sequences,
    number: Int[AnyArray, ""],
  ) -> Float[Array, "m d"]:
    config, rate = self.config, self.config.dropout_rate
    num_queries = len(first) // len(sequences.token_ids)
    tokens = sequences.dropout_keys[:, :num_queries].reshape(-1)
    norm = layer_norm(config, "attention_norm")
    is_global = number % config.global_every == 0
    attended = SelfAttention(config, name="attention")(
      jnp.where(number == 0, hidden, norm(hidden)),
      jnp.where(number == 0, first, norm(first)),
      sequences,
      rotate=functools.partial(
        rotated,
        head_size=config.hidden_size // config.num_heads,
        theta=jnp.where(is_global, config.global_theta, config.local_theta),
      ),
      reach=jnp.where(
        is_global, config.max_positions, config.local_window // 2
      ),
    )
    attended = Dropout(rate, name="attention_dropout")(attended, tokens)
    hidden = checkpoint_name(first + attended, attention.KEPT)
    normalized = layer_norm(config, "mlp_norm")(hidden)
    size = config.intermediate_size

    up, gate = (
      inner_states(dense(config, size, ("embed", "mlp"), name), normalized)
      for name in ("up", "gate")
    )
    gated = ACTIVATIONS[config.activation](up) * gate
    outer = dense(config, config.hidden_size, ("mlp", "embed"), "down")(gated)
    outer = Dropout(rate, name="output_dropout")(outer, tokens)
    hidden = checkpoint_name(hidden + outer, attention.KEPT)
    return nn.with_logical_constraint(hidden, HIDDEN)


def rotated(
  x: Float[Array, "n d"],
  position: Int[AnyArray, " n"],
  *,
  head_size: int,
  theta: Float[AnyArray, ""],
) -> Float[Array, "n d"]:
  """Returns queries or keys, heads side by side, with rotary positions.

  As in Su et al. 2021 (arXiv 2104.09864); the halves of a head are the two
  coordinates that are rotated.
  """
  half = head_size // 2
  rates = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
  angles = jnp.outer(position, jnp.asarray(rates))
  cosine, sine = (f(angles)[:, None] for f in (jnp.cos, jnp.sin))
  heads = x.astype(jnp.float32).reshape(len(x), -1, 2, half)
  x_half, y_half = heads[:, :, 0], heads[:, :, 1]
  turned = jnp.stack(
    [x_half * cosine - y_half * sine, y_half * cosine + x_half * sine], axis=2
  )
  return turned.reshape(x.shape).astype(x.dtype)


class ModernBertEncoder(nn.Module):
  """Word embeddings, layers and a last LayerNorm; no pooler."""

  config: ModernBertConfig

  def setup(self) -> None:
    config = self.config
    # Raises an error if there is no vocabulary yet.
    _ = config.separator
    init = nn.with_logical_partitioning(config.weights_init, ("vocab", "embed"))
    shape = config.vocab_size, config.hidden_size
    self.word_embeddings = nn.with_logical_constraint(
      self.param("word_embeddings", init, shape), ("vocab", "activation_embed")
    )
    self.embedding_norm = layer_norm(config, "embedding_norm")
    self.embedding_dropout = Dropout(config.dropout_rate)
    self.layers, self.last_layer = _Layer(config), _Layer(config)
    self.final_norm = layer_norm(config, "final_norm")

  def __call__(
    self,
    sequences: Sequences,
    *,
    typed: bool = True,
    first_only: bool = False,
  ) -> Float[Array, "r t d"]:
    """Returns the hidden states, like `BertEncoder`, but without token types.

    Raises:
      RealmError: The rows are longer than `max_positions`.
    """
    del typed
    config = self.config
    rows, length = sequences.token_ids.shape
    require_positions(config, length)
    hidden = jnp.take(self.word_embeddings, sequences.token_ids, axis=0)
    hidden = self.embedding_norm(hidden).reshape(-1, config.hidden_size)
    hidden = self.embedding_dropout(hidden, sequences.dropout_keys.reshape(-1))
    hidden = nn.with_logical_constraint(hidden, HIDDEN)
    hidden = apply_layers(
      config,
      (self.layers, self.last_layer),
      hidden,
      sequences,
      first_only,
      np.arange(config.num_layers, dtype=np.int32),
    )
    return self.final_norm(hidden).reshape(rows, -1, config.hidden_size)
