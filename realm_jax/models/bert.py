"""BERT (Devlin et al. 2019): the encoder under every tower and the reader.

Gin files import this module and bind `bert.BertConfig`.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from realm_jax.errors import RealmError
from realm_jax.models import AnyArray, attention, matmul, platforms
from realm_jax.models.dropout import Dropout, hash_tokens, is_dropping
from realm_jax.models.lora import LoraConfig, LoraDense
from realm_jax.models.parameters import Params
from realm_jax.models.sequences import Sequences
from realm_jax.settings import (
  DropoutRate,
  NonNegativeFloat,
  PositiveFloat,
  PositiveInt,
  require_valid,
)

Activation = Literal["gelu_tanh", "gelu"]
ACTIVATIONS: Mapping[Activation, Callable[[jax.Array], jax.Array]] = {
  "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
  "gelu": functools.partial(jax.nn.gelu, approximate=False),
}
RematPolicy = Literal[
  "nothing_saveable", "dots_saveable", "dots_with_no_batch_dims_saveable"
]
# Function that rotates queries or keys [n, d] by their tokens' positions [n].
Rotation = Callable[[jax.Array, jax.Array], jax.Array]
# Logical axes of hidden states, in flat tokens.
HIDDEN = ("activation_batch", "activation_embed")
# Standard deviation of the noise in matrices near the identity.
_NOISE_STDDEV = 0.02


@dataclasses.dataclass(frozen=True)
class BertConfig:
  """Sizes and numerical choices of one BERT encoder.

  Attributes:
    vocab_size, separator_id: Number of wordpieces, and id of [SEP]. None means
      the vocabulary of the corpus (see `for_vocabulary`).
    hidden_size: Size of the hidden states.
    num_layers: Number of layers.
    num_heads: Number of attention heads, which share the hidden size.
    intermediate_size: Size of the feed-forward layers.
    max_positions: Number of positions, which bounds the length of a sequence.
    layer_norm_eps: Epsilon of LayerNorm.
    dropout_rate: Dropout rate of hidden states and attention weights.
    activation: Activation of the feed-forward layers.
    attention_mask_value: Score added at padding. Google's TF1 code uses -10000,
      and Hugging Face the lowest float.
    init_stddev: Standard deviation of initial values.
    initialization: Initial values: "bert" (normal), or "mimetic" (Trockman and
      Kolter 2023, arXiv 2305.09828), for small models without published
      weights. Position embeddings are then sinusoids, and the projections of
      attention and the masked-LM head's first layer are near the identity, so
      that from the first step on, tokens attend to equal words and to
      neighbors, and copy from them.
    dtype: Type of activations and matrix products; parameters stay float32.
      `matmul` says how float32 arrays are multiplied.
    attention: Implementation of attention: "xla", or "cudnn", a kernel for GPUs
      with bfloat16 or float16. Attention with dropout always uses XLA.
    remat_policy: Name of one of `jax.checkpoint_policies`, for the activations
      that are kept for the backward pass. None keeps matrix products, softmax
      and residual sums; recomputing the rest, which is elementwise, is cheap.
    lora: LoRA adapters of the linear layers, which are trained in their place.
  """

  vocab_size: PositiveInt | None = None
  separator_id: int | None = None
  hidden_size: PositiveInt = 768
  num_layers: PositiveInt = 12
  num_heads: PositiveInt = 12
  intermediate_size: PositiveInt = 3072
  max_positions: PositiveInt = 512
  layer_norm_eps: PositiveFloat = 1e-12
  dropout_rate: DropoutRate = 0.1
  activation: Activation = "gelu_tanh"
  attention_mask_value: float = -10000.0
  init_stddev: NonNegativeFloat = 0.02
  initialization: Literal["bert", "mimetic"] = "bert"
  dtype: jax.typing.DTypeLike = jnp.float32
  attention: Literal["xla", "cudnn"] = "xla"
  remat_policy: RematPolicy | None = None
  # Whether linear layers and LayerNorms have biases.
  has_biases: ClassVar[bool] = True
  lora: LoraConfig | None = None

  def __post_init__(self) -> None:
    require_valid(self)
    # "bfloat16" and jnp.bfloat16 compare equal once normalized.
    object.__setattr__(self, "dtype", as_dtype(self.dtype))
    if self.hidden_size % self.num_heads:
      raise RealmError(
        f"hidden_size={self.hidden_size} is not a multiple of "
        f"num_heads={self.num_heads}"
      )

  @property
  def encoder(self) -> "Callable[..., BertEncoder]":
    """The encoder's class."""
    return BertEncoder

  @property
  def separator(self) -> int:
    """Id of [SEP]; raises ValueError before `for_vocabulary` has set it."""
    if self.separator_id is None:
      raise RealmError(
        "the encoder has no vocabulary yet; call BertConfig.for_vocabulary"
      )
    return self.separator_id

  def for_vocabulary(
    self, *, vocab_size: int, separator_id: int
  ) -> "BertConfig":
    """Returns this configuration for the vocabulary of a corpus.

    Raises:
      ValueError: The configuration has another vocabulary size or [SEP].
    """
    vocabulary = {"vocab_size": vocab_size, "separator_id": separator_id}
    for name, value in vocabulary.items():
      configured = getattr(self, name)
      if configured is not None and configured != value:
        raise RealmError(
          f"BertConfig.{name}={configured}, but the corpus's vocabulary has "
          f"{value}; leave it unset, or use the vocabulary that the model was "
          "trained with"
        )
    return dataclasses.replace(self, **vocabulary)

  @property
  def weights_init(self) -> nn.initializers.Initializer:
    """Initializer of a matrix: BERT's truncated normal."""
    return nn.initializers.truncated_normal(self.init_stddev)

  @property
  def projection_init(self) -> nn.initializers.Initializer:
    """Initializer of a square matrix, near the identity if "mimetic"."""
    if self.initialization == "bert":
      return self.weights_init
    noise = nn.initializers.truncated_normal(_NOISE_STDDEV)
    return lambda key, shape, dtype=jnp.float32: (
      jnp.eye(*shape, dtype=dtype) + noise(key, shape, dtype)
    )

  @property
  def positions_init(self) -> nn.initializers.Initializer:
    """Initializer of position embeddings, sinusoids if "mimetic"."""
    if self.initialization == "bert":
      return self.weights_init
    return functools.partial(_sinusoids, self.init_stddev)


def as_dtype(name: jax.typing.DTypeLike) -> jnp.dtype:
  """Returns the type for the setting `dtype`."""
  try:
    return jnp.dtype(name)
  except TypeError as error:
    raise RealmError(f"dtype={name!r} is no numeric type") from error


def _sinusoids(
  stddev: float,
  key: jax.Array,
  shape: tuple[int, int],
  dtype: jax.typing.DTypeLike = float,
) -> Float[Array, "p d"]:
  """Returns sinusoids of positions, with standard deviation `stddev`.

  Wavelengths range from 2π to about 2π times the number of positions.
  """
  del key
  positions, size = shape
  half = size // 2
  rates = float(positions) ** (-jnp.arange(half) / half)
  angles = jnp.outer(jnp.arange(positions), rates)
  waves = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=1)
  return (stddev * jnp.sqrt(2.0) * waves).astype(dtype)


def zeros(axis: str) -> nn.initializers.Initializer:
  """Returns the initializer of a bias with a logical axis."""
  return nn.with_logical_partitioning(nn.initializers.zeros_init(), (axis,))


def dense(
  config: BertConfig,
  features: int,
  axes: tuple[str, str],
  name: str,
  *,
  init: nn.initializers.Initializer | None = None,
  precision: jax.lax.Precision | None = None,
  use_bias: bool | None = None,
) -> LoraDense:
  """Returns a linear layer with logical axes.

  By default, weights have BERT's initial values, and there is a bias if the
  encoder's layers have biases.
  """
  return LoraDense(
    features,
    use_bias=config.has_biases if use_bias is None else use_bias,
    axes=axes,
    lora=config.lora,
    dtype=config.dtype,
    precision=precision,
    kernel_init=nn.with_logical_partitioning(init or config.weights_init, axes),
    bias_init=zeros("norm" if axes[-1] == "embed" else axes[-1]),
    name=name,
  )


def layer_norm(
  config: BertConfig,
  name: str,
  *,
  epsilon: float | None = None,
  use_bias: bool | None = None,
) -> nn.LayerNorm:
  """Returns a LayerNorm in float32 whose result has the encoder's dtype."""
  ones = nn.initializers.ones_init()
  return nn.LayerNorm(
    epsilon=config.layer_norm_eps if epsilon is None else epsilon,
    dtype=config.dtype,
    use_fast_variance=False,
    use_bias=config.has_biases if use_bias is None else use_bias,
    scale_init=nn.with_logical_partitioning(ones, ("norm",)),
    bias_init=zeros("norm"),
    name=name,
  )


class SelfAttention(nn.Module):
  """Attention of tokens to the tokens of the same sequence.

  `first` has the query tokens: the first few of each row, or all. They attend
  to tokens within `reach`, or to all without it. `rotate` applies the positions
  to queries and keys (rotary embeddings).
  """

  config: BertConfig

  @nn.compact
  def __call__(
    self,
    hidden: Float[Array, "n d"],
    first: Float[Array, "m d"],
    sequences: Sequences,
    *,
    rotate: Rotation | None = None,
    reach: Int[AnyArray, ""] | None = None,
  ) -> Float[Array, "m d"]:
    config = self.config
    size, init = config.hidden_size, config.projection_init

    def project(name: str, x: Float[Array, "_ d"]) -> Float[Array, "_ d"]:
      x = dense(config, size, ("embed", "heads"), name, init=init)(x)
      if rotate is not None and name != "value":
        position = sequences.position[:, : len(x) // len(sequences.position)]
        x = rotate(x, jnp.asarray(position).reshape(-1))
      x = checkpoint_name(matmul.as_operand(x), attention.KEPT)
      return nn.with_logical_constraint(x, attention.AXES)

    drops = is_dropping(self, config.dropout_rate)
    num_queries = len(first) // len(sequences.token_ids)
    tokens = sequences.dropout_keys[:, :num_queries]
    context = attention.attend(
      project("query", first),
      project("key", hidden),
      project("value", hidden),
      sequence=sequences.sequence,
      position=sequences.position,
      tokens=hash_tokens(self, tokens) if drops else tokens,
      head_size=size // config.num_heads,
      max_positions=config.max_positions,
      mask_value=config.attention_mask_value,
      dropout_rate=config.dropout_rate if drops else 0.0,
      cudnn=config.attention == "cudnn",
      reach=reach,
    )
    output = dense(config, size, ("heads", "embed"), "output", init=init)
    return nn.with_logical_constraint(output(context), HIDDEN)


class BertLayer(nn.Module):
  """Attention and feed-forward, with LayerNorm after each (post-LN).

  Hidden states are flat, n = r · l tokens: on CPUs, XLA's element-wise code for
  three dimensions took four times as long. `first` has the tokens whose states
  are computed: the first of each row, or all.
  """

  config: BertConfig

  @nn.compact
  def __call__(
    self,
    hidden: Float[Array, "n d"],
    first: Float[Array, "m d"],
    sequences: Sequences,
  ) -> Float[Array, "m d"]:
    config, rate = self.config, self.config.dropout_rate
    num_queries = len(first) // len(sequences.token_ids)
    tokens = sequences.dropout_keys[:, :num_queries].reshape(-1)
    attended = SelfAttention(config, name="attention")(hidden, first, sequences)
    attended = Dropout(rate, name="attention_dropout")(attended, tokens)
    added = checkpoint_name(first + attended, attention.KEPT)
    hidden = layer_norm(config, "attention_norm")(added)
    up = dense(config, config.intermediate_size, ("embed", "mlp"), "up")
    inner = ACTIVATIONS[config.activation](inner_states(up, hidden))
    down = dense(config, config.hidden_size, ("mlp", "embed"), "down")
    outer = down(inner)
    outer = Dropout(rate, name="output_dropout")(outer, tokens)
    added = checkpoint_name(hidden + outer, attention.KEPT)
    hidden = layer_norm(config, "output_norm")(added)
    return nn.with_logical_constraint(hidden, HIDDEN)


def inner_states(
  layer: nn.Dense, x: Float[Array, "m d"]
) -> Float[Array, "m i"]:
  """Returns the states within a feed-forward layer, before the activation."""
  # The largest array kept for the backward pass, so in the operands' type.
  inner = checkpoint_name(matmul.as_operand(layer(x)), attention.KEPT)
  axes = ("activation_batch", "activation_mlp")
  return nn.with_logical_constraint(inner, axes).astype(x.dtype)


def token_types(sequences: Sequences, separator_id: int) -> Int[Array, "r l"]:
  """Returns 0 up to and including a sequence's first [SEP], and 1 after it."""
  is_separator = (sequences.token_ids == separator_id).astype(jnp.int32)
  before = jnp.cumsum(is_separator, axis=-1) - is_separator
  index = jnp.arange(before.shape[-1])[None, :]
  first = jnp.maximum(index - sequences.position, 0)
  return jnp.minimum(before - jnp.take_along_axis(before, first, axis=-1), 1)


class BertEncoder(nn.Module):
  """Embeddings and transformer layers; no pooler.

  As in all modules here, dropout is on if `apply` gets a `dropout` key.
  """

  config: BertConfig

  def setup(self) -> None:
    config = self.config
    # Raises an error if there is no vocabulary yet.
    _ = config.separator
    self.word_embeddings, self.position_embeddings, self.type_embeddings = (
      # Gathered along columns; otherwise the lookup's result would be sharded.
      nn.with_logical_constraint(
        self.param(
          f"{name}_embeddings",
          nn.with_logical_partitioning(init, (axis, "embed")),
          (rows, config.hidden_size),
        ),
        (axis, "activation_embed"),
      )
      for name, axis, rows, init in (
        ("word", "vocab", config.vocab_size, config.weights_init),
        ("position", "position", config.max_positions, config.positions_init),
        ("type", "type", 2, config.weights_init),
      )
    )
    self.embedding_norm = layer_norm(config, "embedding_norm")
    self.embedding_dropout = Dropout(config.dropout_rate)
    # The last layer is separate, because it may compute first tokens only.
    self.layers, self.last_layer = BertLayer(config), BertLayer(config)

  def __call__(
    self,
    sequences: Sequences,
    *,
    typed: bool = True,
    first_only: bool = False,
  ) -> Float[Array, "r t d"]:
    """Returns the hidden states of the last layer.

    If `typed`, tokens after a sequence's first [SEP] are of type 1; all others
    are of type 0. With `first_only`, the last layer computes only the first
    token of each row, and the result is r × 1 × d.

    Raises:
      ValueError: The rows are longer than `max_positions`.
    """
    config = self.config
    rows, length = sequences.token_ids.shape
    require_positions(config, length)
    hidden = jnp.take(self.word_embeddings, sequences.token_ids, axis=0)
    hidden += jnp.take(self.position_embeddings, sequences.position, axis=0)
    # Interpolating two types avoids a gather, and a scatter in the backward
    # pass.
    first, second = self.type_embeddings
    hidden += first[None, None]
    if typed:
      types = token_types(sequences, config.separator)
      weight = types[..., None].astype(jnp.float32)
      hidden += weight * (second - first)[None, None]
    hidden = self.embedding_norm(hidden)
    hidden = hidden.reshape(-1, config.hidden_size)
    hidden = self.embedding_dropout(hidden, sequences.dropout_keys.reshape(-1))
    hidden = nn.with_logical_constraint(hidden, HIDDEN)
    layers = self.layers, self.last_layer
    hidden = apply_layers(config, layers, hidden, sequences, first_only)
    return hidden.reshape(rows, -1, config.hidden_size)


def require_positions(config: BertConfig, length: int) -> None:
  """Raises a `RealmError` if rows are longer than `max_positions`."""
  if length > config.max_positions:
    raise RealmError(
      f"sequences of {length} tokens, but the model has "
      f"max_positions={config.max_positions}; shorten the lengths"
    )


def apply_layers(
  config: BertConfig,
  layers: tuple[nn.Module, nn.Module],
  hidden: Float[Array, "n d"],
  sequences: Sequences,
  first_only: bool,
  *by_layer: Int[AnyArray, " layers"],
) -> Float[Array, "m d"]:
  """Applies a scan over all layers but the last, and then the last layer.

  The scan compiles only one layer. The last layer is separate, because with
  `first_only` it computes only the first token of each row. Each layer also
  gets its element of the arrays `by_layer`.
  """
  in_scan, last_layer = layers
  last = config.num_layers - 1
  if last:
    apply = remat(_apply_layer, config.remat_policy, in_scan=True)
    scan = nn.scan(
      lambda layer, hidden, *elements: (
        apply(layer, hidden, hidden, sequences, *elements),
        None,
      ),
      variable_axes={"params": 0},
      split_rngs={"params": True, "dropout": True},
      length=last,
      unroll=platforms.num_unrolled(last),
      metadata_params={nn.PARTITION_NAME: "layers"},
      check_constancy_invariants=False,
    )
    hidden, _ = scan(in_scan, hidden, *(x[:last] for x in by_layer))
  first = hidden
  if first_only:
    rows = len(sequences.token_ids)
    first = hidden.reshape(rows, -1, hidden.shape[-1])[:, 0]
  apply = remat(_apply_layer, config.remat_policy, in_scan=False)
  elements = (jnp.asarray(x[last]) for x in by_layer)
  return apply(last_layer, hidden, first, sequences, *elements)


def _apply_layer(layer: nn.Module, *inputs: Any) -> Float[Array, "m d"]:
  """Calls a layer, as a function for Flax's lifted transformations."""
  return layer(*inputs)


def remat(
  apply: Callable[..., Float[Array, "m d"]],
  remat_policy: RematPolicy | None,
  *,
  in_scan: bool,
) -> Callable[..., Float[Array, "m d"]]:
  """Returns a function that applies a layer under its remat policy.

  Without a policy, a scan keeps every intermediate result that the backward
  pass reads, three times the memory that XLA needs for a layer outside a scan.
  """
  policies = jax.checkpoint_policies
  if remat_policy is not None:
    policy = getattr(policies, remat_policy)
  elif in_scan:
    policy = policies.save_only_these_names(attention.KEPT)
  else:
    return apply
  return nn.remat(apply, policy=policy, prevent_cse=not in_scan)


class BertComponent(nn.Module):
  """Base of components that consist of a BERT (see `components.Component`)."""

  bert: BertConfig

  @property
  def num_heads(self) -> int:
    """Number of attention heads."""
    return self.bert.num_heads

  def init_parameters(
    self, key: jax.Array, *, query_length: int, block_length: int
  ) -> Params:
    """Initializes the parameters, in Flax's boxes, with a query and a block."""
    query = jnp.ones((1, query_length), jnp.int32)
    block = jnp.ones((1, 1, block_length), jnp.int32)
    return self.init(key, query, block)["params"]

  def for_vocabulary(self, *, vocab_size: int, separator_id: int) -> Self:
    """Returns the same component for the vocabulary of a corpus."""
    bert = self.bert.for_vocabulary(
      vocab_size=vocab_size, separator_id=separator_id
    )
    return self.clone(bert=bert)


class TokenClassifier(nn.Module):
  """An encoder with a label for each token, for tagging named entities.

  Sequences are `[CLS] text [SEP]`, all of type 0.
  """

  bert: BertConfig
  num_labels: int

  @nn.compact
  def __call__(
    self, sequences: Sequences
  ) -> Float[Array, "r t {self.num_labels}"]:
    """Returns each token's logits of the labels."""
    encoder = self.bert.encoder(self.bert, name="encoder")
    hidden = encoder(sequences, typed=False)
    axes = ("embed", "label")
    return dense(self.bert, self.num_labels, axes, "classifier")(hidden)
