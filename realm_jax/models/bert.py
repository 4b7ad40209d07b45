"""BERT (Devlin et al. 2019): the encoder under every tower and the reader."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

PAD_ID = 0

_ACTIVATIONS = {
  "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
  "gelu": functools.partial(jax.nn.gelu, approximate=False),
}


@dataclasses.dataclass(frozen=True)
class BertConfig:
  """Sizes and numerical choices of one BERT encoder.

  `vocab_size` and `separator_id` come from the corpus's vocabulary when they
  are None: see `for_vocabulary`.
  """

  vocab_size: int | None = None
  separator_id: int | None = None
  hidden_size: int = 768
  num_layers: int = 12
  num_heads: int = 12
  intermediate_size: int = 3072
  max_positions: int = 512
  layer_norm_eps: float = 1e-12
  dropout_rate: float = 0.1
  activation: str = "gelu_tanh"
  # Added to the scores of padding; Google's TF1 code uses -10000, and Hugging
  # Face the lowest float.
  attention_mask_value: float = -10000.0
  init_stddev: float = 0.02
  # The type of activations and matrix products; parameters stay float32.
  dtype: Any = jnp.float32

  def __post_init__(self):
    if self.hidden_size % self.num_heads:
      raise ValueError(
        f"hidden_size={self.hidden_size} is not a multiple of "
        f"num_heads={self.num_heads}"
      )
    if self.activation not in _ACTIVATIONS:
      raise ValueError(
        f"activation={self.activation!r}; want one of {sorted(_ACTIVATIONS)}"
      )

  @property
  def separator(self) -> int:
    """The id of [SEP]; raises ValueError where no vocabulary is bound."""
    if self.separator_id is None:
      raise ValueError(
        "the encoder has no vocabulary yet; call BertConfig.for_vocabulary"
      )
    return self.separator_id

  def for_vocabulary(self, *, vocab_size: int, separator_id: int):
    """The same configuration, for the vocabulary of a corpus.

    Raises:
      ValueError: the configuration names another vocabulary size or [SEP].
    """
    wanted = {"vocab_size": vocab_size, "separator_id": separator_id}
    for name, value in wanted.items():
      configured = getattr(self, name)
      if configured is not None and configured != value:
        raise ValueError(
          f"BertConfig.{name}={configured}, but the corpus's vocabulary has "
          f"{value}; leave it unset, or use the vocabulary that the model was "
          "trained with"
        )
    return dataclasses.replace(self, **wanted)


def segment_ids(
  token_ids: Int[Array, "*b l"], separator_id: int
) -> Int[Array, "*b l"]:
  """0 up to and including the first [SEP], 1 after it."""
  is_separator = (token_ids == separator_id).astype(jnp.int32)
  separators_before = jnp.cumsum(is_separator, axis=-1) - is_separator
  return jnp.minimum(separators_before, 1)


def dense(config: BertConfig, features: int, axes: tuple, name: str):
  """A linear layer with logical axis names and BERT's initial values."""
  return nn.Dense(
    features,
    dtype=config.dtype,
    kernel_init=nn.with_logical_partitioning(
      nn.initializers.truncated_normal(config.init_stddev), axes
    ),
    bias_init=nn.with_logical_partitioning(
      nn.initializers.zeros_init(), axes[-1:]
    ),
    name=name,
  )


def layer_norm(config: BertConfig, name: str, *, epsilon: float | None = None):
  """LayerNorm in float32, returned in the configuration's dtype."""
  return nn.LayerNorm(
    epsilon=config.layer_norm_eps if epsilon is None else epsilon,
    dtype=config.dtype,
    scale_init=nn.with_logical_partitioning(
      nn.initializers.ones_init(), ("embed",)
    ),
    bias_init=nn.with_logical_partitioning(
      nn.initializers.zeros_init(), ("embed",)
    ),
    name=name,
  )


class SelfAttention(nn.Module):
  config: BertConfig

  @nn.compact
  def __call__(
    self, hidden: Float[Array, "n d"], is_token: Bool[Array, "b l"], *, train
  ) -> Float[Array, "n d"]:
    config = self.config
    batch, length = is_token.shape
    heads = config.num_heads
    head_size = config.hidden_size // heads

    def project(name):
      out = dense(config, config.hidden_size, ("embed", "heads"), name)(hidden)
      return out.reshape(batch, length, heads, head_size)

    query, key, value = project("query"), project("key"), project("value")
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key).astype(jnp.float32)
    scores = scores / jnp.sqrt(head_size).astype(jnp.float32)
    bias = jnp.where(is_token, 0.0, config.attention_mask_value)
    weights = jax.nn.softmax(scores + bias[:, None, None, :], axis=-1)
    weights = nn.Dropout(config.dropout_rate, deterministic=not train)(
      weights.astype(config.dtype)
    )
    context = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
    context = context.reshape(-1, config.hidden_size)
    return dense(config, config.hidden_size, ("heads", "embed"), "output")(
      context
    )


class BertLayer(nn.Module):
  """Attention and feed-forward, normalised after each (post-LN).

  Hidden states come flat, n = b · l tokens: on CPUs XLA's element-wise code
  over three dimensions took four times as long.
  """

  config: BertConfig

  @nn.compact
  def __call__(
    self, hidden: Float[Array, "n d"], is_token: Bool[Array, "b l"], *, train
  ) -> Float[Array, "n d"]:
    config = self.config

    def dropout(x):
      return nn.Dropout(config.dropout_rate, deterministic=not train)(x)

    attended = SelfAttention(config, name="attention")(
      hidden, is_token, train=train
    )
    hidden = layer_norm(config, "attention_norm")(hidden + dropout(attended))
    inner = dense(config, config.intermediate_size, ("embed", "mlp"), "up")(
      hidden
    )
    inner = _ACTIVATIONS[config.activation](inner)
    outer = dense(config, config.hidden_size, ("mlp", "embed"), "down")(inner)
    hidden = layer_norm(config, "output_norm")(hidden + dropout(outer))
    return nn.with_logical_constraint(hidden, ("batch", "embed"))


class BertEncoder(nn.Module):
  """Embeddings and transformer layers; no pooler."""

  config: BertConfig

  def setup(self):
    config = self.config
    if config.vocab_size is None or config.separator_id is None:
      raise ValueError(
        "the encoder has no vocabulary yet; call BertConfig.for_vocabulary"
      )
    init = nn.initializers.truncated_normal(config.init_stddev)

    def table(name, rows, axes):
      return self.param(
        name,
        nn.with_logical_partitioning(init, axes),
        (rows, config.hidden_size),
      )

    self.word_embeddings = table(
      "word_embeddings", config.vocab_size, ("vocab", "embed")
    )
    self.position_embeddings = table(
      "position_embeddings", config.max_positions, ("position", "embed")
    )
    self.type_embeddings = table("type_embeddings", 2, ("type", "embed"))
    self.embedding_norm = layer_norm(config, "embedding_norm")
    self.embedding_dropout = nn.Dropout(config.dropout_rate)
    self.layers = [
      BertLayer(config, name=f"layer_{i}") for i in range(config.num_layers)
    ]

  def __call__(
    self, token_ids: Int[Array, "*b l"], *, train: bool = False
  ) -> Float[Array, "*b l d"]:
    """Hidden states of the last layer; 0 is padding and is not attended to.

    Raises:
      ValueError: the sequences are longer than `max_positions`.
    """
    config = self.config
    *batch, length = token_ids.shape
    if length > config.max_positions:
      raise ValueError(
        f"sequences of {length} tokens, but the model has "
        f"max_positions={config.max_positions}; shorten the lengths"
      )
    token_ids = token_ids.reshape(-1, length)
    segments = segment_ids(token_ids, config.separator)
    hidden = jnp.take(self.word_embeddings, token_ids, axis=0)
    hidden += self.position_embeddings[None, :length]
    # Two types: an interpolation needs no gather, and no scatter backward.
    first, second = self.type_embeddings
    weight = segments[..., None].astype(jnp.float32)
    hidden += first[None, None] + weight * (second - first)[None, None]
    hidden = self.embedding_norm(hidden).astype(config.dtype)
    hidden = self.embedding_dropout(hidden, deterministic=not train)
    hidden = hidden.reshape(-1, config.hidden_size)
    hidden = nn.with_logical_constraint(hidden, ("batch", "embed"))
    is_token = token_ids != PAD_ID
    for layer in self.layers:
      hidden = layer(hidden, is_token, train=train)
    return hidden.reshape(*batch, length, config.hidden_size)


class MaskedLmHead(nn.Module):
  """Dense, gelu, LayerNorm, then the tied decoder with a bias of its own."""

  config: BertConfig

  @nn.compact
  def __call__(
    self, hidden: Float[Array, "*b d"], word_embeddings: Float[Array, "v d"]
  ) -> Float[Array, "*b v"]:
    config = self.config
    hidden = dense(config, config.hidden_size, ("embed", "embed_out"), "dense")(
      hidden
    )
    hidden = _ACTIVATIONS[config.activation](hidden)
    hidden = layer_norm(config, "norm")(hidden)
    bias = self.param(
      "bias",
      nn.with_logical_partitioning(nn.initializers.zeros_init(), ("vocab",)),
      (config.vocab_size,),
    )
    logits = jnp.einsum(
      "...d,vd->...v",
      hidden,
      word_embeddings.astype(config.dtype),
      preferred_element_type=jnp.float32,
    )
    return logits + bias.reshape((1,) * (logits.ndim - 1) + (-1,))
