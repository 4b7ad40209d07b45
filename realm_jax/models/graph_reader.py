"""A reader of connected passages (GraphReader, Min et al. 2019b).

Passages are the nodes of a graph (arXiv 1911.03868). Graph layers add messages
from neighbors, which depend on the relation, to the vector of each passage. The
resulting vector scores the passage, and is added to its tokens before spans are
scored.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from realm_jax.models import AnyArray, sequences
from realm_jax.models.bert import dense, layer_norm
from realm_jax.models.reader import BertReader, JointInputs, Spans
from realm_jax.settings import PositiveInt


class GraphInputs(NamedTuple):
  """Queries with their passages, and the edges between passages.

  Attributes:
    joint: Inputs of a `BertReader`.
    edges: Kind of the edge from passage i to passage j; 0 for no edge.
  """

  joint: JointInputs
  edges: Int[AnyArray, "b k k"]


class GraphReader(BertReader):
  """A `BertReader` whose passages exchange messages along edges.

  A layer computes, for passage i with neighbors j,

      m_i = mean_j ReLU(W_own v_i + W_other v_j + r_ij)
      v_i ← LayerNorm(v_i + W_out m_i)

  where r_ij has a vector for each kind of edge and direction. The first v_i is
  the encoder's output at [CLS].

  Attributes:
    graph_layers: Number of graph layers.
    num_edge_kinds: Number of kinds of edges; further kinds count as the last.
  """

  graph_layers: PositiveInt = 2
  num_edge_kinds: PositiveInt = 64

  def setup(self) -> None:
    super().setup()
    size, vector = self.bert.hidden_size, ("embed", "embed_out")
    layers = range(self.graph_layers)

    def made(name: str) -> list[nn.Module]:
      return [dense(self.bert, size, vector, f"{name}_{n}") for n in layers]

    self.own, self.other, self.out = map(made, ("own", "other", "out"))
    self.norms = [layer_norm(self.bert, f"norm_{n}") for n in layers]
    # For each kind of edge, a vector for either direction.
    init = nn.initializers.normal(self.bert.init_stddev)
    self.relations = self.param(
      "relations",
      nn.with_logical_partitioning(init, (None, None, None, "embed_out")),
      (self.graph_layers, 2, 1 + self.num_edge_kinds, size),
    )
    self.passage_score = dense(
      self.bert, 1, ("embed", "label"), "passage_score"
    )

  def fused(
    self, vectors: Float[Array, "b k d"], edges: Int[AnyArray, "b k k"]
  ) -> Float[Array, "b k d"]:
    """Returns the vectors of passages after all layers."""
    outward = jnp.minimum(jnp.asarray(edges), self.num_edge_kinds)
    inward = jnp.swapaxes(outward, 1, 2)
    is_edge = ((outward > 0) | (inward > 0)).astype(vectors.dtype)[..., None]
    number = jnp.maximum(is_edge.sum(axis=2), 1.0)
    for layer in range(self.graph_layers):
      starts, ends = self.relations[layer]
      relation = jnp.where(outward[..., None] > 0, starts[outward], 0.0)
      relation += jnp.where(inward[..., None] > 0, ends[inward], 0.0)
      own, other = self.own[layer](vectors), self.other[layer](vectors)
      pairs = jax.nn.relu(own[:, :, None] + other[:, None] + relation)
      message = (pairs * is_edge).sum(axis=2) / number
      vectors = self.norms[layer](vectors + self.out[layer](message))
    return vectors

  def graph_spans(self, inputs: GraphInputs, *, num_starts: int) -> Spans:
    """Scores spans, with the score of their passage, as `spans` does."""
    joint = inputs.joint
    hidden = self.encoder(joint.sequences)
    first = jnp.zeros((joint.body_start.size, 1), jnp.int32)
    vectors = sequences.gather(joint.sequences, hidden, first)[:, 0]
    vectors = vectors.reshape(*joint.body_start.shape, -1)
    vectors = self.fused(vectors, inputs.edges)
    body, is_span = self.bodies(joint, hidden, num_starts=num_starts)
    logits = self.span_head(body + vectors[:, :, None])
    scores = self.passage_score(vectors).astype(jnp.float32)
    return Spans(logits + scores[..., None], is_span)

  def __call__(
    self,
    query: Int[AnyArray, "b q"],
    candidates: Int[AnyArray, "b k l"],
    mask_positions: Int[AnyArray, "b m"] | None = None,
  ) -> tuple[Float[Array, "b k m v"], Spans]:
    """Runs all heads on padded inputs, so `init` creates all parameters."""
    count = candidates.shape[1]
    edges = jnp.zeros((len(query), count, count), jnp.int32)
    self.fused(jnp.zeros((len(query), count, self.bert.hidden_size)), edges)
    self.passage_score(jnp.zeros((1, self.bert.hidden_size)))
    return super().__call__(query, candidates, mask_positions)
