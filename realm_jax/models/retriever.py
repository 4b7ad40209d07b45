"""The retriever: towers that embed queries and blocks, and f(x, z)."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from realm_jax.errors import RealmError
from realm_jax.models import AnyArray, bert, sequences
from realm_jax.models.bert import BertConfig
from realm_jax.models.dropout import Dropout
from realm_jax.models.parameters import Params
from realm_jax.models.sequences import Sequences
from realm_jax.settings import (
  DropoutRate,
  Named,
  PositiveFloat,
  PositiveInt,
)

# Parameters of the tower that embeds the queries of a second search.
HOP_TOWER = "hop_tower"
POOLINGS = ("pooler", "cls", "mean", "last")
# Component that keeps a frozen copy of INITIAL_CHECKPOINT's retriever.
START_RETRIEVER = "start_retriever"
# Precision of matrix products for retrieval scores. By default, TPUs would
# round float32 inputs to bfloat16.
PRECISION = jax.lax.Precision.HIGHEST
# Squared length below which vectors are not normalized.
_MIN_SQUARE = 1e-24


class Tower(nn.Module):
  """Embeds sequences with BERT, pooling, and a projection with LayerNorm.

  REALM's released embedder pools with BERT's pooler (dense and tanh over
  [CLS]); the paper's text says raw [CLS] (section 3.3).
  """

  bert: BertConfig
  pooling: str
  projection_size: int | None
  projection_norm_eps: float
  projection_dropout_rate: float
  normalize: bool
  token_types: bool

  @nn.compact
  def __call__(self, inputs: Sequences) -> Float[Array, "n d"]:
    """Returns the vectors of sequences."""
    encoder = self.bert.encoder(self.bert, name="encoder")
    is_padded = isinstance(inputs, sequences.PaddedSequences)
    first_only = is_padded and self.pooling not in ("mean", "last")
    hidden = encoder(inputs, typed=self.token_types, first_only=first_only)
    if self.pooling == "mean":
      pooled = sequences.mean(inputs, hidden)
    elif self.pooling == "last":
      last = sequences.lengths(inputs)[:, None] - 1
      pooled = sequences.gather(inputs, hidden, jnp.maximum(last, 0))[:, 0]
    elif first_only:
      pooled = hidden[:, 0]
    else:
      first = jnp.zeros((inputs.starts.size, 1), jnp.int32)
      pooled = sequences.gather(inputs, hidden, first)[:, 0]
    # Pooled vectors are few, and decide which blocks are retrieved: they are
    # computed in float32, whatever the encoder's type is.
    pooled = nn.with_logical_constraint(pooled, bert.HIDDEN)
    pooled = pooled.astype(jnp.float32)
    config = dataclasses.replace(self.bert, dtype=jnp.float32)
    dense = functools.partial(
      bert.dense, config, precision=PRECISION, use_bias=True
    )
    if self.pooling == "pooler":
      size, axes = self.bert.hidden_size, ("embed", "embed_out")
      pooled = jnp.tanh(dense(size, axes, "pooler")(pooled))
      pooled = nn.with_logical_constraint(pooled, bert.HIDDEN)
    if self.projection_size is not None:
      size, axes = self.projection_size, ("embed", "projection")
      # As in the released inverse cloze code, which uses TensorFlow's default.
      init = nn.initializers.glorot_uniform()
      pooled = dense(size, axes, "projection", init=init)(pooled)
      pooled = nn.with_logical_constraint(pooled, bert.HIDDEN)
      pooled = bert.layer_norm(
        config,
        "projection_norm",
        epsilon=self.projection_norm_eps,
        use_bias=True,
      )(pooled)
      pooled = Dropout(self.projection_dropout_rate, name="projection_dropout")(
        pooled, inputs.dropout_ids.reshape(-1)
      )
    if self.normalize:
      pooled = normalized(pooled)
    return nn.with_logical_constraint(pooled, bert.HIDDEN)


class BertRetriever(bert.BertComponent):
  """Embeds queries and blocks so that f(x, z) is their inner product.

  Attributes:
    shared_towers: Whether queries and blocks share all parameters.
    pooling: `pooler` (as released), `cls` (as in the paper), `mean`, or `last`
      (the last [SEP]).
    projection_size: Dimension of the vectors; None leaves out the projection
      and its LayerNorm.
    projection_norm_eps: Epsilon of the projection's LayerNorm.
    projection_dropout_rate: Dropout rate of the vectors.
    normalize: Whether vectors have length 1; then raise `score_scale`.
    score_scale: Factor of every inner product.
    query_prefix: Ids of tokens between [CLS] and a query, for retrievers that
      were trained with a prefix, such as E5.
    block_prefix: Ids of tokens between [CLS] and a block, likewise.
    title_separator: Whether [SEP] separates title and body.
    token_types: Whether tokens after the first [SEP] are of type 1.
    hop_length: Number of tokens of a query together with a retrieved block, for
      the queries of a second search, which a third tower embeds. None for a
      retriever of one hop.
  """

  shared_towers: bool = True
  pooling: str = "pooler"
  projection_size: PositiveInt | None = 128
  projection_norm_eps: PositiveFloat = 1e-12
  projection_dropout_rate: Annotated[DropoutRate, Named("DROPOUT_RATE")] = 0.1
  normalize: bool = False
  score_scale: PositiveFloat = 1.0
  query_prefix: Sequence[int] = ()
  block_prefix: Sequence[int] = ()
  title_separator: bool = True
  token_types: bool = True
  hop_length: PositiveInt | None = None

  def setup(self) -> None:
    if self.pooling not in POOLINGS:
      raise RealmError(f"pooling={self.pooling!r}; want one of {POOLINGS}")

    tower = functools.partial(
      Tower,
      self.bert,
      pooling=self.pooling,
      projection_size=self.projection_size,
      projection_norm_eps=self.projection_norm_eps,
      projection_dropout_rate=self.projection_dropout_rate,
      normalize=self.normalize,
      token_types=self.token_types,
    )
    if self.shared_towers:
      self.query_tower = self.block_tower = tower(name="tower")
    else:
      self.query_tower = tower(name="query_tower")
      self.block_tower = tower(name="block_tower")
    if self.hop_length is not None:
      self.hop_tower = tower(name=HOP_TOWER)

  @property
  def vector_size(self) -> int:
    """Dimension of the vectors."""
    return self.projection_size or self.bert.hidden_size

  def query_tower_parameters(self, params: Params) -> Params:
    """Returns the parameters that embed queries, including second hops."""
    names = ["tower" if self.shared_towers else "query_tower"]
    if self.hop_length is not None:
      names.append(HOP_TOWER)
    return {name: params[name] for name in names}

  def query_input(
    self, token_ids: Int[AnyArray, "n q"]
  ) -> Int[AnyArray, "n p"]:
    """Returns the query tower's input for `[CLS] x [SEP]`."""
    return sequences.with_prefix(token_ids, self.query_prefix)

  def block_input(
    self, token_ids: Int[AnyArray, "n l"]
  ) -> Int[AnyArray, "n p"]:
    """Returns the block tower's input for `[CLS] title [SEP] body [SEP]`."""
    if not self.title_separator:
      separator = self.bert.separator
      token_ids = sequences.without_title_separator(token_ids, separator)
    return sequences.with_prefix(token_ids, self.block_prefix)

  def hop_queries(
    self, query: Int[AnyArray, "b q"], blocks: Int[AnyArray, "b k l"]
  ) -> Int[AnyArray, "b k p"]:
    """Returns the queries of a second search, `[CLS] x [SEP] title body [SEP]`.

    As in MDR (Xiong et al. 2020, arXiv 2009.12756), a query is joined with each
    block of the first search. `embed_hop_queries` embeds them.

    Raises:
      RealmError: `hop_length` is None.
    """
    if self.hop_length is None:
      raise RealmError(
        "a second search needs HOP_LENGTH, the number of tokens of a query "
        "together with a block; the retriever has none"
      )
    return sequences.pairs(
      query,
      blocks,
      joint_length=self.hop_length,
      separator_id=self.bert.separator,
    )

  def embed_queries(
    self, queries: Int[AnyArray, "*b l"] | Sequences
  ) -> Float[Array, "*n d"]:
    """Embeds `[CLS] x [SEP]`, padded, or sequences made by `query_input`."""
    return _embed(self.query_tower, queries, self.query_input)

  def embed_hop_queries(
    self, queries: Int[AnyArray, "*b l"] | Sequences
  ) -> Float[Array, "*n d"]:
    """Embeds the queries of `hop_queries`, or sequences made by `query_input`.

    MDR uses the query tower here. Trained without gold paths, a shared tower
    forgets the first search, so the second one has its own.
    """
    return _embed(self.hop_tower, queries, self.query_input)

  def embed_blocks(
    self, blocks: Int[AnyArray, "*b l"] | Sequences
  ) -> Float[Array, "*n d"]:
    """Embeds `[CLS] title [SEP] body [SEP]`, or sequences of `block_input`."""
    return _embed(self.block_tower, blocks, self.block_input)

  def __call__(
    self,
    query: Int[AnyArray, "*b q"] | Sequences,
    block: Int[AnyArray, "*c l"] | Sequences,
  ) -> tuple[Float[Array, "*n d"], Float[Array, "*m d"]]:
    """Embeds both sides, so that `init` creates every parameter."""
    if self.is_initializing() and self.hop_length is not None:
      self.embed_hop_queries(query)
    return self.embed_queries(query), self.embed_blocks(block)


def _embed(
  tower: Tower,
  inputs: Int[AnyArray, "*b l"] | Sequences,
  prepare: Callable[[Int[AnyArray, "n l"]], Int[AnyArray, "n p"]],
) -> Float[Array, "*n d"]:
  if isinstance(inputs, Sequences):
    return tower(inputs)
  token_ids = prepare(inputs.reshape(-1, inputs.shape[-1]))
  vectors = tower(sequences.padded(token_ids))
  return vectors.reshape(*inputs.shape[:-1], -1)


def shortened(
  retriever: Any, vectors: Float[Array, "*n d"], size: int | None
) -> Float[Array, "*n _"]:
  """Truncates vectors to `size` elements; None keeps all.

  If the retriever normalizes its vectors, so are the truncated ones.
  """
  if size is None:
    return vectors
  vectors = vectors[..., :size]
  return normalized(vectors) if retriever.normalize else vectors


def normalized(vectors: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
  """Scales vectors to length 1; zero vectors stay zero."""
  # The bound is inside the root, whose derivative at 0 is infinite. Packed
  # batches have empty sequences, whose mean is the zero vector.
  square = jnp.sum(vectors**2, axis=-1, keepdims=True)
  return vectors / jnp.sqrt(jnp.maximum(square, _MIN_SQUARE))


def relevance(
  query: Float[Array, "b d"],
  blocks: Float[AnyArray, "b k d"],
  *,
  score_scale: float = 1.0,
) -> Float[Array, "b k"]:
  """Returns f(x, z) (the paper's section 3.2) of each query's candidates."""
  return score_scale * jnp.einsum(
    "bd,bkd->bk",
    query,
    blocks,
    preferred_element_type=jnp.float32,
    precision=PRECISION,
  )
