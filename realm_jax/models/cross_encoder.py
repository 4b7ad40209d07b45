"""A cross-encoder: BERT scores pairs of a query and a block."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from realm_jax.models import AnyArray, sequences
from realm_jax.models.bert import BertComponent, dense
from realm_jax.models.dropout import Dropout
from realm_jax.models.packing import TokenSequences
from realm_jax.models.parameters import Params
from realm_jax.models.sequences import Sequences
from realm_jax.settings import PositiveInt

# Name of the component of a run.
RERANKER = "reranker"


class PairEncoder(BertComponent):
  """BERT over `[CLS] x [SEP] title body [SEP]`, a query with a block.

  Attributes:
    joint_length: Number of tokens of query and block together.
  """

  joint_length: PositiveInt = 384

  def setup(self) -> None:
    self.encoder = self.bert.encoder(self.bert)

  def join(
    self, query: Int[AnyArray, "b q"], blocks: Int[AnyArray, "b k l"]
  ) -> TokenSequences:
    """Joins padded queries with the blocks of each.

    Pairs are ordered by query. A block that does not fit is truncated.
    """
    pairs = sequences.pairs(
      query,
      blocks,
      joint_length=self.joint_length,
      separator_id=self.bert.separator,
    )
    return TokenSequences(pairs.reshape(-1, self.joint_length))

  def first_states(self, pairs: Sequences) -> Float[Array, "n d"]:
    """Returns the states of [CLS] of pairs that are laid out."""
    is_padded = isinstance(pairs, sequences.PaddedSequences)
    hidden = self.encoder(pairs, first_only=is_padded)
    if is_padded:
      return hidden[:, 0]
    places = jnp.zeros((pairs.starts.size, 1), jnp.int32)
    return sequences.gather(pairs, hidden, places)[:, 0]


class CrossEncoder(PairEncoder):
  """Scores pairs (Nogueira and Cho 2019).

  The same model as Hugging Face's `BertForSequenceClassification` with one
  label, and the cross-encoders of sentence-transformers (arXiv 1901.04085).
  """

  def setup(self) -> None:
    super().setup()
    size = self.bert.hidden_size
    self.pooler = dense(self.bert, size, ("embed", "embed_out"), "pooler")
    self.classifier = dense(self.bert, 1, ("embed", "label"), "classifier")
    self.dropout = Dropout(self.bert.dropout_rate)

  def scores(self, pairs: Sequences) -> Float[Array, " n"]:
    """Returns the scores of pairs that are laid out."""
    pooled = jnp.tanh(self.pooler(self.first_states(pairs)))
    pooled = self.dropout(pooled, pairs.dropout_ids.reshape(-1))
    return self.classifier(pooled)[:, 0].astype(jnp.float32)

  def __call__(
    self, query: Int[AnyArray, "b q"], blocks: Int[AnyArray, "b k l"]
  ) -> Float[Array, "b k"]:
    """Returns the scores of padded queries and the blocks of each."""
    pairs = sequences.padded(self.join(query, blocks).token_ids)
    return self.scores(pairs).reshape(blocks.shape[:2])


def score_pairs(
  module: CrossEncoder,
  params: Params,
  query: Int[AnyArray, "n q"],
  block: Int[AnyArray, "n l"],
) -> Float[Array, " n"]:
  """Returns the score of each query with its block, both padded."""
  scores = module.apply({"params": params}, query, block[:, None])
  return jnp.asarray(scores)[:, 0]
