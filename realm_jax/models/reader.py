"""The reader (knowledge-augmented encoder): query and block together."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from realm_jax.models import bert, joint


class Spans(NamedTuple):
  """Scores of answer spans: start i, width w + 1, in tokens of the body."""

  logits: Float[Array, "b k l w"]
  is_span: Bool[Array, "b k l w"]


class SpanHead(nn.Module):
  """Scores spans: start + end, ReLU, LayerNorm, dense to 1 (as released).

  The paper writes MLP([h_start; h_end]) (section 3.2); the released reader
  projects to twice `size` and adds the halves.
  """

  config: bert.BertConfig
  size: int
  norm_eps: float
  max_width: int

  @nn.compact
  def __call__(
    self, hidden: Float[Array, "b k l d"]
  ) -> Float[Array, "b k l {self.max_width}"]:
    projected = bert.dense(
      self.config, 2 * self.size, ("embed", "span"), "projection"
    )(hidden)
    start, end = jnp.split(projected, 2, axis=-1)
    norm = nn.LayerNorm(
      epsilon=self.norm_eps, dtype=self.config.dtype, name="norm"
    )
    score = nn.Dense(1, dtype=self.config.dtype, name="score")

    def of_width(extra):
      shifted = jnp.pad(end[:, :, extra:], ((0, 0), (0, 0), (0, extra), (0, 0)))
      return score(norm(jax.nn.relu(start + shifted)))[..., 0]

    logits = [of_width(extra) for extra in range(self.max_width)]
    return jnp.stack(logits, axis=-1).astype(jnp.float32)


class Reader(nn.Module):
  """BERT over `[CLS] x [SEP] body [SEP]` with a masked-LM and a span head.

  Attributes:
    bert: the encoder's configuration.
    joint_length: tokens of query and body together.
    span_size, span_norm_eps, max_answer_width: the span head, as released.
  """

  bert: bert.BertConfig
  joint_length: int = 384
  span_size: int = 256
  span_norm_eps: float = 1e-3
  max_answer_width: int = 10

  def setup(self):
    self.encoder = bert.BertEncoder(self.bert)
    self.masked_lm_head = bert.MaskedLmHead(self.bert)
    self.span_head = SpanHead(
      self.bert,
      size=self.span_size,
      norm_eps=self.span_norm_eps,
      max_width=self.max_answer_width,
    )

  def _read(self, query, candidates, joint_length, train):
    inputs = joint.join(
      query,
      candidates,
      joint_length=joint_length,
      separator_id=self.bert.separator,
    )
    return inputs, self.encoder(inputs.token_ids, train=train)

  def masked_lm(
    self,
    query: Int[Array, "b q"],
    candidates: Int[Array, "b k l"],
    mask_positions: Int[Array, "b m"],
    *,
    null_first: bool = True,
    train: bool = False,
  ) -> Float[Array, "b k m v"]:
    """Logits of the words behind the masks, for each candidate.

    The query opens the joint input, so a mask has the same position there.

    Args:
      query: `[CLS] x [SEP]`.
      candidates: `[CLS] title [SEP] body [SEP]`.
      mask_positions: of the masks in the query.
      null_first: whether candidate 0 is the null block everywhere. It adds one
        token to the query, and is read at that length.
      train: whether to drop out.
    """

    def at_masks(some, joint_length):
      _, hidden = self._read(query, some, joint_length, train)
      return jnp.take_along_axis(
        hidden, mask_positions[:, None, :, None], axis=2
      )

    null_length = min(query.shape[-1] + 1, self.joint_length)
    parts = [at_masks(candidates[:, :1], null_length)] if null_first else []
    others = candidates[:, int(null_first) :]
    if others.shape[1]:
      parts.append(at_masks(others, self.joint_length))
    hidden = jnp.concatenate(parts, axis=1)
    return self.masked_lm_head(hidden, self.encoder.word_embeddings)

  def spans(
    self,
    query: Int[Array, "b q"],
    candidates: Int[Array, "b k l"],
    *,
    train: bool = False,
  ) -> Spans:
    """Scores every span of at most `max_answer_width` tokens of the bodies."""
    inputs, hidden = self._read(query, candidates, self.joint_length, train)
    index = jnp.arange(candidates.shape[-1])[None, None, :]
    position = inputs.body_start[..., None] + index
    position = jnp.minimum(position, self.joint_length - 1)
    body = jnp.take_along_axis(hidden, position[..., None], axis=2)
    last = index[..., None] + jnp.arange(self.max_answer_width).reshape(
      1, 1, 1, -1
    )
    is_span = last < inputs.body_length[..., None, None]
    return Spans(self.span_head(body), is_span)

  def __call__(self, query, candidates, mask_positions, *, train=False):
    """Runs both heads, so that `init` makes every parameter."""
    return (
      self.masked_lm(query, candidates, mask_positions, train=train),
      self.spans(query, candidates, train=train),
    )

  def for_vocabulary(self, *, vocab_size: int, separator_id: int):
    """The same reader over the vocabulary of a corpus."""
    config = self.bert.for_vocabulary(
      vocab_size=vocab_size, separator_id=separator_id
    )
    return self.clone(bert=config)
