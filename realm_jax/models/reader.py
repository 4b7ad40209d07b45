"""The reader (knowledge-augmented encoder), which joins query and block."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from realm_jax.models import AnyArray, sequences
from realm_jax.models.bert import (
  ACTIVATIONS,
  BertComponent,
  BertConfig,
  dense,
  layer_norm,
  zeros,
)
from realm_jax.models.packing import TokenSequences, padded_inputs
from realm_jax.models.sequences import Sequences
from realm_jax.settings import PositiveFloat, PositiveInt

# Logical axes of hidden states [b, k, l, d].
_BY_CANDIDATE = (
  "activation_batch",
  None,
  "activation_length",
  "activation_embed",
)


class JointInputs(NamedTuple):
  """Queries with their candidates, ordered by query, then candidate.

  Attributes:
    tokens: `[CLS] x [SEP] body [SEP]` of each pair, or its layout in bins.
    body_start: Position of a block's body in its joint input.
    body_length: Number of body tokens in the joint input.
  """

  tokens: TokenSequences | Sequences
  body_start: Int[AnyArray, "b k"]
  body_length: Int[AnyArray, "b k"]

  @property
  def sequences(self) -> Sequences:
    """The tokens, once they are laid out."""
    assert isinstance(self.tokens, Sequences)
    return self.tokens


class Spans(NamedTuple):
  """Scores of answer spans by start i and width w + 1, in body tokens."""

  logits: Float[Array, "b k l w"]
  is_span: Bool[Array, "b k l w"]


class MaskedLmHead(nn.Module):
  """Dense layer, activation, LayerNorm, and the tied decoder with a bias."""

  config: BertConfig

  @nn.compact
  def __call__(
    self, hidden: Float[Array, "*b d"], word_embeddings: Float[AnyArray, "v d"]
  ) -> Float[Array, "*b v"]:
    config = self.config
    axes, init = ("embed", "embed_out"), config.projection_init
    layer = dense(config, config.hidden_size, axes, "dense", init=init)
    hidden = ACTIVATIONS[config.activation](layer(hidden))
    hidden = layer_norm(config, "norm")(hidden)
    bias = self.param("bias", zeros("vocab"), (config.vocab_size,))
    logits = jnp.einsum(
      "...d,vd->...v",
      hidden,
      word_embeddings.astype(config.dtype),
      preferred_element_type=jnp.float32,
    )
    return logits + bias.reshape((1,) * (logits.ndim - 1) + (-1,))


class _Parameters(nn.Module):
  """Parameters by name, with their initializers and shapes."""

  specs: dict[str, tuple[nn.initializers.Initializer, tuple[int, ...]]]

  @nn.compact
  def __call__(self) -> list[AnyArray]:
    return [self.param(name, *spec) for name, spec in self.specs.items()]


class SpanHead(nn.Module):
  """Scores spans: start + end, ReLU, LayerNorm, dense to 1 (as released).

  The paper writes MLP([h_start; h_end]) (section 3.2); the released reader
  projects to twice `size` and adds the halves. LayerNorm and the last layer are
  computed from three sums over a span's features, so that the array of spans by
  features, gigabytes for a batch, is never in memory.
  """

  config: BertConfig
  size: int
  norm_eps: float
  max_width: int

  @nn.compact
  def __call__(
    self, hidden: Float[Array, "b k l d"]
  ) -> Float[Array, "b k l {self.max_width}"]:
    size, axes = 2 * self.size, ("embed", "span")
    projected = dense(self.config, size, axes, "projection")(hidden)
    start, end = jnp.split(projected.astype(jnp.float32), 2, axis=-1)
    zeros, ones = nn.initializers.zeros, nn.initializers.ones
    # The released readers use a standard deviation of 0.02 here, which learns
    # more slowly (docs/fidelity.md).
    normal = nn.initializers.lecun_normal()
    vector, matrix = (self.size,), (self.size, 1)
    norm = {"scale": (ones, vector), "bias": (zeros, vector)}
    score = {"kernel": (normal, matrix), "bias": (zeros, (1,))}
    scale, shift = _Parameters(norm, name="norm")()
    kernel, bias = _Parameters(score, name="score")()
    weights = (scale * kernel[:, 0]).reshape(1, 1, 1, -1)
    constant = shift @ kernel[:, 0] + bias[0]

    def logits(extra: int) -> Float[Array, "b k l"]:
      """Scores the spans of `extra` tokens after the first."""
      missing = min(extra, end.shape[2])
      shifted = jnp.pad(
        end[:, :, extra:], ((0, 0), (0, 0), (0, missing), (0, 0))
      )
      features = jax.nn.relu(start + shifted)
      mean = jnp.mean(features, axis=-1)
      variance = jnp.mean(jnp.square(features), axis=-1) - jnp.square(mean)
      variance = jnp.maximum(variance, 0.0)
      weighted = jnp.sum(features * weights, axis=-1) - mean * jnp.sum(weights)
      return weighted * jax.lax.rsqrt(variance + self.norm_eps) + constant

    return jnp.stack(
      [logits(extra) for extra in range(self.max_width)], axis=-1
    )


class BertReader(BertComponent):
  """BERT over `[CLS] x [SEP] body [SEP]` with a masked-LM and a span head.

  Attributes:
    joint_length: Number of tokens of query and body together.
    span_size: Hidden size of the span head.
    span_norm_eps: Epsilon of the span head's LayerNorm.
    max_answer_width: Number of tokens of the longest span.
  """

  joint_length: PositiveInt = 384
  span_size: PositiveInt = 256
  span_norm_eps: PositiveFloat = 1e-3
  max_answer_width: PositiveInt = 10

  def setup(self) -> None:
    self.encoder = self.bert.encoder(self.bert)
    self.masked_lm_head = MaskedLmHead(self.bert)
    self.span_head = SpanHead(
      self.bert, self.span_size, self.span_norm_eps, self.max_answer_width
    )

  @property
  def separator_id(self) -> int:
    """Id of [SEP]."""
    return self.bert.separator

  @property
  def dropout_rate(self) -> float:
    """Dropout rate in training."""
    return self.bert.dropout_rate

  def join(
    self,
    query: Int[AnyArray, "b q"],
    candidates: Int[AnyArray, "b k l"],
    token_ids: Int[AnyArray, "b m"] | None = None,
  ) -> JointInputs:
    """Joins queries and candidates; the target `token_ids` are not needed."""
    del token_ids
    joint = sequences.join(
      query,
      candidates,
      joint_length=self.joint_length,
      separator_id=self.bert.separator,
    )
    tokens = TokenSequences(joint.token_ids.reshape(-1, self.joint_length))
    return JointInputs(tokens, joint.body_start, joint.body_length)

  def token_logits(
    self,
    inputs: JointInputs,
    positions: Int[AnyArray, "b m"],
    token_ids: Int[AnyArray, "b m"],
  ) -> Float[Array, "b k m v"]:
    """Returns `masked_lm`; the targets are not among the reader's inputs."""
    del token_ids
    return self.masked_lm(inputs, positions)

  def masked_lm(
    self,
    inputs: JointInputs,
    mask_positions: Int[AnyArray, "b m"],
    hidden: Float[Array, "r l d"] | None = None,
  ) -> Float[Array, "b k m v"]:
    """Returns the logits of the words behind the masks, by candidate.

    A joint input begins with the query, so masks keep their positions. `hidden`
    is the encoder's output for the inputs, if it has been computed already.
    """
    joint = inputs.sequences
    hidden = self.encoder(joint) if hidden is None else hidden
    batch, num_masks = mask_positions.shape
    num_candidates = joint.starts.size // batch
    positions = jnp.repeat(mask_positions, num_candidates, axis=0)
    masked = sequences.gather(joint, hidden, positions)
    masked = masked.reshape(batch, num_candidates, num_masks, -1)
    masked = nn.with_logical_constraint(masked, _BY_CANDIDATE)
    logits = self.masked_lm_head(masked, self.encoder.word_embeddings)
    # The vocabulary axis is sharded in the same way as the embeddings.
    axes = (*_BY_CANDIDATE[:-1], PartitionSpec.UNCONSTRAINED)
    return nn.with_logical_constraint(logits, axes)

  def spans(
    self,
    inputs: JointInputs,
    hidden: Float[Array, "r l d"] | None = None,
    *,
    num_starts: int,
  ) -> Spans:
    """Scores every span of at most `max_answer_width` tokens of the bodies.

    `hidden` is as in `masked_lm`. A span may start at one of the first
    `num_starts` tokens of a body.
    """
    if hidden is None:
      hidden = self.encoder(inputs.sequences)
    body, is_span = self.bodies(inputs, hidden, num_starts=num_starts)
    return Spans(self.span_head(body), is_span)

  def bodies(
    self, inputs: JointInputs, hidden: Float[Array, "r l d"], *, num_starts: int
  ) -> tuple[Float[Array, "b k s d"], Bool[Array, "b k s w"]]:
    """Returns the hidden states of bodies, and the mask of valid spans."""
    joint = inputs.sequences
    batch, num_candidates = inputs.body_start.shape
    body_length = jnp.asarray(inputs.body_length)
    index = jnp.arange(num_starts)[None, :]
    positions = inputs.body_start.reshape(-1, 1) + jnp.minimum(
      index, body_length.reshape(-1, 1)
    )
    body = sequences.gather(joint, hidden, positions)
    body = body.reshape(batch, num_candidates, num_starts, -1)
    body = nn.with_logical_constraint(body, _BY_CANDIDATE)
    last = index[None, ..., None] + jnp.arange(self.max_answer_width).reshape(
      1, 1, 1, -1
    )
    return body, last < body_length[..., None, None]

  def masked_lm_and_spans(
    self,
    inputs: JointInputs,
    mask_positions: Int[AnyArray, "b m"],
    *,
    num_starts: int,
  ) -> tuple[Float[Array, "b k m v"], Spans]:
    """Returns `masked_lm` and `spans`, with a single pass of the encoder."""
    hidden = self.encoder(inputs.sequences)
    return (
      self.masked_lm(inputs, mask_positions, hidden),
      self.spans(inputs, hidden, num_starts=num_starts),
    )

  def __call__(
    self,
    query: Int[AnyArray, "b q"],
    candidates: Int[AnyArray, "b k l"],
    mask_positions: Int[AnyArray, "b m"] | None = None,
  ) -> tuple[Float[Array, "b k m v"], Spans]:
    """Runs both heads on padded inputs, so `init` creates all parameters."""
    if mask_positions is None:
      mask_positions = jnp.zeros((len(query), 1), jnp.int32)
    return self.masked_lm_and_spans(
      padded_inputs(self.join(query, candidates)),
      mask_positions,
      num_starts=candidates.shape[-1],
    )
