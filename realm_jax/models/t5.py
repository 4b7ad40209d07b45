"""T5 (Raffel et al. 2020): encoder and decoder for readers that write.

A decoder reads one encoded sequence, or several at once as in Fusion-in-Decoder
(Izacard and Grave 2021). Gin files import this module and bind `t5.T5Config`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int, UInt32

from realm_jax.errors import RealmError
from realm_jax.models import AnyArray, attention, matmul, platforms
from realm_jax.models.attention import ByHeads
from realm_jax.models.bert import (
  HIDDEN,
  RematPolicy,
  as_dtype,
  inner_states,
  remat,
)
from realm_jax.models.dropout import Dropout, hash_tokens, is_dropping
from realm_jax.models.lora import LoraConfig, LoraDense
from realm_jax.models.parameters import Params
from realm_jax.models.sequences import (
  PAD_ID,
  Sequences,
  dropout_keys,
  padded,
  unpacked,
)
from realm_jax.settings import (
  DropoutRate,
  PositiveFloat,
  PositiveInt,
  require_valid,
)

Activation = Literal["relu", "gelu_tanh"]
_ACTIVATIONS: Mapping[Activation, Callable[[jax.Array], jax.Array]] = {
  "relu": jax.nn.relu,
  "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
}
# Score added to masked keys.
MASKED = -1e9
# Bound on the length of a sequence, to number keys by head for dropout.
_MAX_POSITIONS = 1 << 16
# For "mimetic" values: score of a neighbor, above √d, which is the score of an
# equal token; and share of normal values that is kept as noise.
_NEIGHBOUR_SCORE, _MIMETIC_NOISE = 12.0, 0.1
# The number of rows of embeddings is a multiple of this.
_VOCAB_MULTIPLE = 128
# Collection of `CrossAttention`, which layers fill if it is mutable.
_CROSS_ATTENTION = "cross_attention"

# Keys and values by head. Only the number of heads is checked, because shapes
# differ within a call.
KeysAndValues = tuple[Float[Array, "_ h _ e"], Float[Array, "_ h _ e"]]


@dataclasses.dataclass(frozen=True)
class T5Config:
  """Sizes and numerical choices of T5: by default, T5 1.0's base.

  T5 1.1, its LM-adapted checkpoints, Flan-T5 and mT5 have
  `activation="gelu_tanh"`, `gated=True` and `tied_head=False`.

  Attributes:
    vocab_size: Number of embeddings, at least the size of the vocabulary. None
      is this size, rounded up (see `for_vocabulary`).
    hidden_size: Size of the hidden states (d_model).
    num_layers: Number of encoder layers.
    num_decoder_layers: Number of decoder layers; None takes `num_layers`.
    num_heads: Number of attention heads.
    head_size: Size of a head (d_kv).
    intermediate_size: Size of the feed-forward layers (d_ff).
    num_buckets: Number of buckets of relative positions.
    max_distance: Distance from which on all positions share a bucket.
    norm_eps: Epsilon of RMSNorm.
    dropout_rate: Dropout rate of hidden states and attention weights.
    activation: Activation of the feed-forward layers.
    gated: Whether a second linear layer gates the activation.
    tied_head: Whether the embeddings, scaled by 1 / √d, are the output layer.
    start_id, end_id: Id before the first token, and id after the last one.
    initialization: Initial values: "t5" (normal), or "mimetic" (see `mimetic`)
      for small models without published weights.
    dtype: Type of activations and matrix products; parameters stay float32.
      `matmul` says how float32 arrays are multiplied.
    remat_policy: Rematerialization policy, as in `BertConfig`.
    lora: LoRA adapters of the linear layers, which are trained in their place.
  """

  vocab_size: PositiveInt | None = None
  hidden_size: PositiveInt = 768
  num_layers: PositiveInt = 12
  num_decoder_layers: PositiveInt | None = None
  num_heads: PositiveInt = 12
  head_size: PositiveInt = 64
  intermediate_size: PositiveInt = 3072
  num_buckets: PositiveInt = 32
  max_distance: PositiveInt = 128
  norm_eps: PositiveFloat = 1e-6
  dropout_rate: DropoutRate = 0.1
  activation: Activation = "relu"
  gated: bool = False
  tied_head: bool = True
  start_id: int = PAD_ID
  end_id: int = 1
  initialization: Literal["t5", "mimetic"] = "t5"
  dtype: jax.typing.DTypeLike = jnp.float32
  remat_policy: RematPolicy | None = None
  lora: LoraConfig | None = None

  def __post_init__(self) -> None:
    require_valid(self)
    object.__setattr__(self, "dtype", as_dtype(self.dtype))
    if self.initialization == "mimetic" and self.head_size != self.hidden_size:
      raise RealmError(
        f"initialization='mimetic' with head_size={self.head_size} and "
        f"hidden_size={self.hidden_size}: each head begins near the identity, "
        "so make them equal"
      )

  @property
  def decoder_layers(self) -> int:
    """Number of decoder layers."""
    return self.num_decoder_layers or self.num_layers

  def for_vocabulary(self, vocab_size: int) -> "T5Config":
    """Returns this configuration for a vocabulary of `vocab_size` tokens.

    Raises:
      RealmError: The model has fewer embeddings.
    """
    rows = self.vocab_size
    if rows is None:
      rows = -(-vocab_size // _VOCAB_MULTIPLE) * _VOCAB_MULTIPLE
    if rows < vocab_size:
      raise RealmError(
        f"T5Config.vocab_size={rows}, but the vocabulary has {vocab_size} "
        "tokens; leave it unset, or use the vocabulary that the model was "
        "trained with"
      )
    return dataclasses.replace(self, vocab_size=rows)


class View(NamedTuple):
  """Attention mask and bias of the queries of each row.

  Attributes:
    mask: Score added to masked keys, and 0 for others.
    tokens: Id of each query token, for dropout.
    positions: Position of each key, for dropout.
    bias: Score for the distance between query and key.
  """

  mask: Float[Array, "#r 1 #q l"]
  tokens: UInt32[Array, "r q"]
  positions: Int[Array, "#r l"]
  bias: Float[Array, "1 h #q l"] | None = None


class Memory(NamedTuple):
  """Encoded tokens to which each of n decoders attends, padded.

  Attributes:
    hidden: Hidden states of the encoder, for one or several sequences.
    is_token: Whether a state is a token's, and not padding.
    dropout_ids: Id of each decoder's text; its dropout masks depend on it.
  """

  hidden: Float[Array, "n s d"]
  is_token: Bool[Array, "n s"]
  dropout_ids: UInt32[Array, " n"]

  @property
  def mask(self) -> Float[Array, "n 1 1 s"]:
    """Score added at padding."""
    return jnp.where(self.is_token, 0.0, MASKED)[:, None, None, :]

  def fused(self, number: int) -> "Memory":
    """Joins each `number` consecutive memories to one, for Fusion-in-Decoder.

    The candidates of a query are consecutive.
    """
    size = self.hidden.shape[-1]
    decoders = len(self.hidden) // number
    return Memory(
      self.hidden.reshape(decoders, -1, size),
      self.is_token.reshape(decoders, -1),
      self.dropout_ids.reshape(decoders, number)[:, 0],
    )


class CrossAttention(NamedTuple):
  """Attention of decoders to each of their k sequences.

  Attributes:
    first_score: Scores before the softmax for the first token, averaged over a
      sequence's tokens, layers and heads, as in FiD-KD.
    weighted_norm: Attention times the norm of the values, summed over a
      sequence's tokens and averaged over layers, heads and the target's tokens.
      Atlas' attention distillation also divides it by a constant.
  """

  first_score: Float[Array, "n k"]
  weighted_norm: Float[Array, "n k"]


def _normal(
  stddev: float, axes: tuple[str, ...]
) -> nn.initializers.Initializer:
  normal = nn.initializers.normal(stddev)
  return nn.with_logical_partitioning(normal, axes)


def _dense(
  config: T5Config, features: int, axes: tuple[str, str], stddev: float
) -> LoraDense:
  """Returns a linear layer without bias."""
  return LoraDense(
    features,
    axes=axes,
    lora=config.lora,
    use_bias=False,
    dtype=config.dtype,
    kernel_init=_normal(stddev, axes),
  )


def rms_norm(config: T5Config) -> nn.RMSNorm:
  """Returns an RMSNorm in float32 whose result has the model's dtype."""
  ones = nn.initializers.ones_init()
  return nn.RMSNorm(
    epsilon=config.norm_eps,
    dtype=config.dtype,
    scale_init=nn.with_logical_partitioning(ones, ("norm",)),
  )


def position_bias(
  config: T5Config,
  embeddings: Float[AnyArray, "c h"],
  length: int,
  *,
  bidirectional: bool,
) -> Float[Array, "1 h {length} {length}"]:
  """Returns the score of each distance between two of `length` tokens."""
  distances = np.arange(1 - length, length)
  classes = config.num_buckets
  buckets = np.zeros_like(distances)
  if bidirectional:
    classes //= 2
    buckets, distances = classes * (distances > 0), np.abs(distances)
  else:
    distances = -np.minimum(distances, 0)
  exact = classes // 2
  with np.errstate(divide="ignore"):
    far = np.log(distances.astype(np.float32) / np.float32(exact))
  far /= np.float32(math.log(config.max_distance / exact))
  far = exact + np.maximum(far * np.float32(classes - exact), 0).astype(int)
  far = np.minimum(far, classes - 1)
  buckets = buckets + np.where(distances < exact, distances, far)
  by_distance = jnp.take(jnp.asarray(embeddings).T, buckets, axis=1)
  places = jnp.arange(length)
  index = places[None, :] - places[:, None] + length - 1
  return jnp.take(by_distance, index, axis=1)[None].astype(jnp.float32)


class T5Attention(nn.Module):
  """Attention whose scores are not scaled."""

  config: T5Config

  def setup(self) -> None:
    config = self.config
    size, axes = config.num_heads * config.head_size, ("embed", "heads")
    stddev = config.hidden_size**-0.5
    # The initial queries include the scale that other models apply to scores.
    scaled = stddev * config.head_size**-0.5
    self.query = _dense(config, size, axes, scaled)
    self.key, self.value = (_dense(config, size, axes, stddev) for _ in "kv")
    axes = ("heads", "embed")
    self.output = _dense(config, config.hidden_size, axes, size**-0.5)

  def _project(
    self, layer: nn.Dense, x: Float[Array, "m d"], rows: int
  ) -> Float[Array, "{rows} h q e"]:
    x = checkpoint_name(matmul.as_operand(layer(x)), attention.KEPT)
    x = nn.with_logical_constraint(x, attention.AXES)
    return attention.by_heads(x, rows=rows, head_size=self.config.head_size)

  def keys_and_values(self, x: Float[Array, "m d"], rows: int) -> KeysAndValues:
    """Returns the keys and values of tokens in `rows` rows, by head."""
    return self._project(self.key, x, rows), self._project(self.value, x, rows)

  def __call__(
    self, x: Float[Array, "m d"], others: KeysAndValues, view: View
  ) -> Float[Array, "m d"]:
    """Returns the attention output of each token over the `others`."""
    config = self.config
    drops = is_dropping(self, config.dropout_rate)
    tokens = hash_tokens(self, view.tokens) if drops else view.tokens
    query, (key, value) = self._project(self.query, x, len(tokens)), others
    if self.is_mutable_collection(_CROSS_ATTENTION):
      first = matmul.matmul_nt(query[:, :, :1], key, jnp.float32)
      self.sow(_CROSS_ATTENTION, "first_score", first[:, :, 0].mean(1))
      weights = attention.weights(query, key, view.mask, view.bias, 1.0)
      norms = jnp.linalg.norm(value.astype(jnp.float32), axis=-1)[:, :, None]
      self.sow(_CROSS_ATTENTION, "weighted_norm", (weights * norms).mean(1))
    columns = attention.dropout_columns(
      view.positions, config.num_heads, _MAX_POSITIONS
    )
    rows = tokens[:, None, :, None]
    context = attention.attend_by_heads(
      ByHeads(query, key, value, view.mask, rows, columns, view.bias),
      config.dropout_rate if drops else 0.0,
      1.0,
    )
    output = self.output(attention.side_by_side(context))
    return nn.with_logical_constraint(output, HIDDEN)


class T5Layer(nn.Module):
  """Attention and feed-forward, each after a normalization (pre-norm).

  Hidden states are flat, as in `BertLayer`. A decoder layer also attends to
  encoded tokens.
  """

  config: T5Config
  is_decoder: bool

  def setup(self) -> None:
    config = self.config
    size, inner = config.hidden_size, config.intermediate_size
    self.attention_norm = rms_norm(config)
    self.attention = T5Attention(config)
    if self.is_decoder:
      self.cross_attention_norm = rms_norm(config)
      self.cross_attention = T5Attention(config)
    self.mlp_norm = rms_norm(config)
    self.up = _dense(config, inner, ("embed", "mlp"), size**-0.5)
    if config.gated:
      self.gate = _dense(config, inner, ("embed", "mlp"), size**-0.5)
    self.down = _dense(config, size, ("mlp", "embed"), inner**-0.5)
    # Each call has its own masks.
    self.dropout = Dropout(config.dropout_rate)

  def read(self, memory: Memory) -> KeysAndValues:
    """Returns the keys and values of encoded tokens."""
    rows, _, size = memory.hidden.shape
    hidden = memory.hidden.reshape(-1, size)
    return self.cross_attention.keys_and_values(hidden, rows)

  def __call__(
    self,
    hidden: Float[Array, "m d"],
    view: View,
    memory: KeysAndValues | None = None,
    memory_view: View | None = None,
    past: tuple[KeysAndValues, Int[Array, ""]] | None = None,
  ) -> tuple[Float[Array, "m d"], KeysAndValues]:
    """Returns the layer's hidden states, and the keys and values of its tokens.

    Args:
      hidden: Hidden states of the layer before.
      view: Mask and bias of self-attention.
      memory, memory_view: Keys and values from `read`, and their mask, in a
        decoder.
      past: Keys and values of earlier tokens, and the index of the new ones.
    """
    tokens = view.tokens.reshape(-1)
    x = self.attention_norm(hidden)
    cache = self.attention.keys_and_values(x, len(view.tokens))
    if past is not None:
      before, place = past
      key, value = (
        lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), place, 2)
        for old, new in zip(before, cache, strict=True)
      )
      cache = key, value

    def added(
      hidden: Float[Array, "m d"], change: Float[Array, "m d"]
    ) -> Float[Array, "m d"]:
      hidden = hidden + self.dropout(change, tokens)
      hidden = nn.with_logical_constraint(hidden, HIDDEN)
      return checkpoint_name(hidden, attention.KEPT)

    hidden = added(hidden, self.attention(x, cache, view))
    if memory is not None and memory_view is not None:
      x = self.cross_attention_norm(hidden)
      hidden = added(hidden, self.cross_attention(x, memory, memory_view))
    x = self.mlp_norm(hidden)
    activation = _ACTIVATIONS[self.config.activation]
    if self.config.gated:
      inner = activation(inner_states(self.gate, x)) * inner_states(self.up, x)
    else:
      inner = activation(inner_states(self.up, x))
    return added(hidden, self.down(self.dropout(inner, tokens))), cache


def _apply(
  layer: T5Layer,
  hidden: Float[Array, "m d"],
  view: View,
  memory: Memory | None,
  memory_view: View | None,
) -> Float[Array, "m d"]:
  keys = None if memory is None else layer.read(memory)
  return layer(hidden, view, keys, memory_view)[0]


class T5Stack(nn.Module):
  """The layers of an encoder or a decoder."""

  config: T5Config
  is_decoder: bool

  def setup(self) -> None:
    config = self.config
    self.position_embeddings = self.param(
      "position_embeddings",
      _normal(config.hidden_size**-0.5, ("position", "heads")),
      (config.num_buckets, config.num_heads),
    )
    self.layers = T5Layer(config, self.is_decoder)
    self.norm = rms_norm(config)
    self.dropout = Dropout(config.dropout_rate)

  def __call__(
    self,
    hidden: Float[Array, "r l d"],
    view: View,
    memory: Memory | None = None,
    memory_view: View | None = None,
  ) -> Float[Array, "r l d"]:
    """Returns normalized hidden states; adds the bias to the `view`."""
    config, shape = self.config, hidden.shape
    bias = position_bias(
      config,
      self.position_embeddings,
      shape[1],
      bidirectional=not self.is_decoder,
    )
    view, tokens = view._replace(bias=bias), view.tokens.reshape(-1)
    hidden = hidden.reshape(-1, config.hidden_size).astype(config.dtype)
    hidden = self.dropout(hidden, tokens)
    hidden = nn.with_logical_constraint(hidden, HIDDEN)
    apply = remat(_apply, config.remat_policy, in_scan=True)
    length = config.decoder_layers if self.is_decoder else config.num_layers
    scan = nn.scan(
      lambda layer, x: (apply(layer, x, view, memory, memory_view), None),
      variable_axes={"params": 0, _CROSS_ATTENTION: 0},
      split_rngs={"params": True, "dropout": True},
      length=length,
      unroll=platforms.num_unrolled(length),
      metadata_params={nn.PARTITION_NAME: "layers"},
      check_constancy_invariants=False,
    )
    hidden = self.norm(scan(self.layers, hidden)[0])
    return self.dropout(hidden, tokens).reshape(shape)


class T5(nn.Module):
  """T5: `encode` reads sequences, and `decode` scores texts about them.

  As in all modules here, dropout is on if `apply` gets a `dropout` key. The
  caller ends sequences with `end_id`.
  """

  config: T5Config

  def setup(self) -> None:
    config = self.config
    if config.vocab_size is None:
      raise RealmError(
        "the model has no vocabulary yet; call T5Config.for_vocabulary"
      )
    embeddings = self.param(
      "word_embeddings",
      _normal(1.0, ("vocab", "embed")),
      (config.vocab_size, config.hidden_size),
    )
    # Gathered along columns, as in `BertEncoder`.
    axes = ("vocab", "activation_embed")
    self.word_embeddings = nn.with_logical_constraint(embeddings, axes)
    self.encoder = T5Stack(config, is_decoder=False)
    self.decoder = T5Stack(config, is_decoder=True)
    if not config.tied_head:
      axes, stddev = ("embed", "vocab"), config.hidden_size**-0.5
      self.head = _dense(config, config.vocab_size, axes, stddev)

  def encode(self, sequences: Sequences) -> Float[Array, "r l d"]:
    """Returns the hidden states of the encoder's tokens."""
    owner = sequences.sequence
    attends = owner[:, :, None] == owner[:, None, :]
    mask = jnp.where(attends, 0.0, MASKED)[:, None]
    position = jnp.asarray(sequences.position)
    # A sequence's tokens are consecutive in a bin, so distances in the bin are
    # distances in the sequence.
    view = View(mask, sequences.dropout_keys, position)
    hidden = jnp.take(self.word_embeddings, sequences.token_ids, axis=0)
    return self.encoder(hidden, view)

  def encode_memory(self, sequences: Sequences) -> Memory:
    """Encodes sequences, each for its own decoder (but see `Memory.fused`)."""
    hidden, is_token = unpacked(sequences, self.encode(sequences))
    ids = jnp.asarray(sequences.dropout_ids).reshape(-1)
    return Memory(hidden, is_token, ids)

  def decode(
    self, memory: Memory, token_ids: Int[AnyArray, "n t"]
  ) -> Float[Array, "n t v"]:
    """Returns the logits of each token of a text, given those before it."""
    config = self.config
    count, length = token_ids.shape
    place = jnp.arange(length)
    tokens = dropout_keys(memory.dropout_ids[:, None], place[None])
    causal = jnp.where(place[:, None] >= place[None], 0.0, MASKED)[None, None]
    before = jnp.pad(
      jnp.asarray(token_ids)[:, :-1],
      ((0, 0), (1, 0)),
      constant_values=config.start_id,
    )
    hidden = self.decoder(
      jnp.take(self.word_embeddings, before, axis=0),
      View(causal, tokens, place[None]),
      memory,
      View(memory.mask, tokens, jnp.arange(memory.is_token.shape[1])[None]),
    ).reshape(count * length, -1)
    if config.tied_head:
      hidden *= config.hidden_size**-0.5
      kernel = self.word_embeddings.T
      logits = matmul.dot_general(hidden, kernel, (((1,), (0,)), ((), ())))
    else:
      logits = self.head(hidden)
    return logits.astype(jnp.float32).reshape(count, length, -1)

  def __call__(
    self,
    sequences: Sequences,
    token_ids: Int[AnyArray, "n t"],
    *,
    fused: int = 1,
  ) -> Float[Array, "n t v"]:
    """Returns the logits of each token of a text about `fused` sequences."""
    return self.decode(self.encode_memory(sequences).fused(fused), token_ids)

  def init_parameters(self, key: jax.Array) -> Params:
    """Initializes the parameters, in Flax's boxes."""
    token = jnp.ones((1, 1), jnp.int32)
    params = self.init(key, padded(token), token)["params"]
    if self.config.initialization == "mimetic":
      return mimetic(self.config, params)
    return params


def mimetic(config: T5Config, params: Params) -> Params:
  """Returns initial values from which a small model quickly learns to copy.

  All projections of attention are near the identity (Trockman and Kolter 2023,
  arXiv 2305.09828). The first head attends to the previous token, and an
  encoder's second head to the next token, so that a sentinel can find words
  with the same neighbors elsewhere.

  Args:
    config: Sizes of the model; its heads are as wide as its hidden states.
    params: Normal initial values, in Flax's boxes, used as noise.
  """
  same = np.tile(np.eye(config.hidden_size, dtype=np.float32), config.num_heads)
  means = {
    "query": config.head_size**-0.5 * same,
    "key": same,
    "value": same,
    "output": same.T / config.num_heads,
  }

  def changed(path: tuple[Any, ...], x: jax.Array) -> jax.Array:
    names = [getattr(step, "key", "") for step in path]
    for name, mean in means.items():
      if name in names and "kernel" in names:
        # All layers in one array.
        return jnp.asarray(mean)[None] + _MIMETIC_NOISE * x
    if "position_embeddings" in names:
      x = x.at[1, 0].add(_NEIGHBOUR_SCORE)
      if "encoder" in names:
        x = x.at[config.num_buckets // 2 + 1, 1].add(_NEIGHBOUR_SCORE)
    return x

  return jax.tree_util.tree_map_with_path(changed, params)


def log_likelihood(
  logits: Float[Array, "n t v"], token_ids: Int[AnyArray, "n t"]
) -> Float[Array, "n t"]:
  """Returns log p of each token of a text, and 0 at its padding."""
  chosen = jnp.take_along_axis(logits, token_ids[..., None], axis=-1)[..., 0]
  log_p = chosen - jax.nn.logsumexp(logits, axis=-1)
  return jnp.where(token_ids != PAD_ID, log_p, 0.0)


def cross_attention(
  model: T5,
  params: Params,
  memory: Memory,
  token_ids: Int[AnyArray, "n t"],
  *,
  fused: int,
) -> CrossAttention:
  """Returns the attention of decoders to each of `fused` sequences.

  Runs the decoder without dropout. A loss that uses this as a target must stop
  its gradient.
  """
  _, collections = model.apply(
    {"params": params},
    memory,
    token_ids,
    method="decode",
    mutable=[_CROSS_ATTENTION],
  )
  layers = collections[_CROSS_ATTENTION]["decoder"]["layers"]["cross_attention"]
  (first,), (weighted,) = (layers[n] for n in CrossAttention._fields)
  is_target = (jnp.asarray(token_ids) != PAD_ID)[None, ..., None]
  count = jnp.maximum(is_target.sum(axis=(0, 2, 3)), 1)
  is_token = memory.is_token.reshape(len(memory.is_token), fused, -1)

  def by_sequence(x: Float[Array, "layers n s"]) -> Float[Array, "n k"]:
    x = x.mean(axis=0).reshape(is_token.shape)
    return jnp.sum(x, axis=-1, where=is_token)

  tokens = jnp.maximum(is_token.sum(axis=-1), 1)
  weighted = jnp.sum(weighted, axis=2, where=is_target) / count[None, :, None]
  return CrossAttention(by_sequence(first) / tokens, by_sequence(weighted))
