"""BERT (Devlin et al. 2019): the encoder under every tower and the reader."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from realm_jax.models import initializers
from realm_jax.models.activations import ACTIVATIONS, activate_and_project
from realm_jax.models.arrays import AnyArray
from realm_jax.models.attention.choice import IMPLEMENTATIONS, attend
from realm_jax.models.attention.inputs import AXES, AttentionInputs, Settings
from realm_jax.models.dropout import Dropout, hash_tokens, is_dropping
from realm_jax.models.layer_norm import LayerNorm
from realm_jax.models.sequences import Sequences

# Logical axes of hidden states, in flat tokens.
HIDDEN = ("activation_batch", "activation_embed")
INITIALIZATIONS = ("bert", "mimetic")
REMAT_POLICIES = (
  "nothing_saveable",
  "dots_saveable",
  "dots_with_no_batch_dims_saveable",
)


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
  # Score added at padding. Google's TF1 code uses -10000, and Hugging Face the
  # lowest float.
  attention_mask_value: float = -10000.0
  init_stddev: float = 0.02
  # Initial values: "bert", normal ones, or "mimetic" (Trockman and Kolter 2023,
  # arXiv 2305.09828), for small models that no BERT weights exist for. Position
  # embeddings are sinusoids, and attention's projections and the masked-LM
  # head's first layer are near the identity, so that tokens attend to equal
  # words and to neighbours, and take over what they attend to, from the first
  # step on.
  initialization: str = "bert"
  # The type of activations and matrix products; parameters stay float32.
  dtype: jax.typing.DTypeLike = jnp.float32
  # Attention's implementation: "plain", "fused" (the kernel for TPUs, which is
  # interpreted on other platforms), or "auto", which is fused on TPUs alone.
  # Where the kernel does not handle the sizes, and where only the first tokens
  # of rows attend, "fused" and "auto" compute plainly, without an error.
  attention: str = "auto"
  # What the backward pass does not compute again: the name of one of
  # `jax.checkpoint_policies`, such as "nothing_saveable". None keeps all.
  remat_policy: str | None = None

  def __post_init__(self) -> None:
    if self.hidden_size % self.num_heads:
      raise ValueError(
        f"hidden_size={self.hidden_size} is not a multiple of "
        f"num_heads={self.num_heads}"
      )
    if self.activation not in ACTIVATIONS:
      raise ValueError(
        f"activation={self.activation!r}; want one of {sorted(ACTIVATIONS)}"
      )
    if self.initialization not in INITIALIZATIONS:
      raise ValueError(
        f"initialization={self.initialization!r}; want one of "
        f"{', '.join(INITIALIZATIONS)}"
      )
    if self.attention not in IMPLEMENTATIONS:
      raise ValueError(
        f"attention={self.attention!r}; want one of "
        f"{', '.join(IMPLEMENTATIONS)}"
      )
    if self.remat_policy not in (None, *REMAT_POLICIES):
      raise ValueError(
        f"remat_policy={self.remat_policy!r}; want None or one of "
        f"{', '.join(REMAT_POLICIES)}"
      )

  @property
  def separator(self) -> int:
    """Id of [SEP]; raises ValueError where no vocabulary is bound."""
    if self.separator_id is None:
      raise ValueError(
        "the encoder has no vocabulary yet; call BertConfig.for_vocabulary"
      )
    return self.separator_id

  def for_vocabulary(
    self, *, vocab_size: int, separator_id: int
  ) -> "BertConfig":
    """Returns this configuration for the vocabulary of a corpus.

    Raises:
      ValueError: The configuration names another vocabulary size or [SEP].
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


def token_types(sequences: Sequences, separator_id: int) -> Int[Array, "r l"]:
  """Returns 0 up to and with a sequence's first [SEP], 1 after it."""
  is_separator = (sequences.token_ids == separator_id).astype(jnp.int32)
  before = jnp.cumsum(is_separator, axis=-1) - is_separator
  index = jnp.arange(before.shape[-1])[None, :]
  first = jnp.maximum(index - sequences.position, 0)
  return jnp.minimum(before - jnp.take_along_axis(before, first, axis=-1), 1)


def _projection(config: BertConfig) -> nn.initializers.Initializer:
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
    init = nn.with_logical_partitioning(_projection(config), ("embed", "heads"))
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
    axes, init = ("heads", "embed"), _projection(config)
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


class BertEncoder(nn.Module):
  """Embeddings and transformer layers; no pooler.

  As in all modules here, dropout is on where `apply` is given a `dropout` key.
  """

  config: BertConfig

  def setup(self) -> None:
    config = self.config
    if config.vocab_size is None or config.separator_id is None:
      raise ValueError(
        "the encoder has no vocabulary yet; call BertConfig.for_vocabulary"
      )
    self.word_embeddings, self.position_embeddings, self.type_embeddings = (
      # Gathered here: divided by columns, the lookup's result would be, too.
      nn.with_logical_constraint(
        self.param(
          f"{name}_embeddings",
          initializers.sinusoids(config.init_stddev)
          if (name, config.initialization) == ("position", "mimetic")
          else initializers.normal(config.init_stddev, axis, "embed"),
          (rows, config.hidden_size),
        ),
        (axis, "activation_embed"),
      )
      for name, axis, rows in (
        ("word", "vocab", config.vocab_size),
        ("position", "position", config.max_positions),
        ("type", "type", 2),
      )
    )
    self.embedding_norm = layer_norm(config, "embedding_norm")
    self.embedding_dropout = Dropout(config.dropout_rate)
    layer = BertLayer
    if config.remat_policy is not None:
      policy = getattr(jax.checkpoint_policies, config.remat_policy)
      layer = nn.remat(BertLayer, policy=policy)
    self.layers = [
      layer(config, name=f"layer_{i}") for i in range(config.num_layers)
    ]

  def __call__(
    self,
    sequences: Sequences,
    *,
    typed: bool = True,
    first_only: bool = False,
  ) -> Float[Array, "r t d"]:
    """Returns the hidden states of the last layer.

    Args:
      sequences: Sequences in rows, one or several in each.
      typed: Whether tokens after a sequence's first [SEP] are of type 1;
        otherwise all are of type 0.
      first_only: Whether the last layer computes each row's first token
        alone; the result is r × 1 × d then.

    Raises:
      ValueError: The rows are longer than `max_positions`.
    """
    config = self.config
    rows, length = sequences.token_ids.shape
    if length > config.max_positions:
      raise ValueError(
        f"sequences of {length} tokens, but the model has "
        f"max_positions={config.max_positions}; shorten the lengths"
      )
    hidden = jnp.take(self.word_embeddings, sequences.token_ids, axis=0)
    hidden += jnp.take(self.position_embeddings, sequences.position, axis=0)
    # Two types: an interpolation needs no gather, and no scatter backward.
    first, second = self.type_embeddings
    hidden += first[None, None]
    if typed:
      types = token_types(sequences, config.separator)
      weight = types[..., None].astype(jnp.float32)
      hidden += weight * (second - first)[None, None]
    hidden = self.embedding_norm(hidden).astype(config.dtype)
    hidden = hidden.reshape(-1, config.hidden_size)
    hidden = self.embedding_dropout(hidden, sequences.dropout_keys.reshape(-1))
    hidden = nn.with_logical_constraint(hidden, HIDDEN)
    for i, layer in enumerate(self.layers, start=1):
      if first_only and i == config.num_layers:
        hidden = layer(hidden, sequences, first_only=True)
      else:
        hidden = layer(hidden, sequences)
    return hidden.reshape(rows, -1, config.hidden_size)


class MaskedLmHead(nn.Module):
  """Dense, activation, LayerNorm, and the tied decoder with its own bias."""

  config: BertConfig

  @nn.compact
  def __call__(
    self, hidden: Float[Array, "*b d"], word_embeddings: Float[AnyArray, "v d"]
  ) -> Float[Array, "*b v"]:
    config = self.config
    axes = ("embed", "embed_out")
    init = _projection(config)
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
