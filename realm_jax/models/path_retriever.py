"""A path retriever: a recurrent network that chooses a path of passages.

Asai et al. 2020, "Learning to Retrieve Reasoning Paths over Wikipedia Graph for
Question Answering" (arXiv 1911.10470, section 3.1). A path ends where the
network chooses the end instead of a further passage.
"""

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from realm_jax.models import AnyArray, sequences
from realm_jax.models.bert import dense, layer_norm, zeros
from realm_jax.models.cross_encoder import PairEncoder
from realm_jax.models.dropout import Dropout
from realm_jax.models.parameters import Params
from realm_jax.models.sequences import Sequences

# Name of the component of a run.
PATH_RETRIEVER = "path_retriever"


class PathRetriever(PairEncoder):
  """Scores the next passage of a path by a recurrent state.

      w_i = BERT_[CLS](x, passage i)
      h_1 = g s / |s|,    h_{t+1} = g a / |a|,    a = W [h_t; w_i] + c
      P(i | h_t) = sigmoid(w_i · h_t + b)

  The end counts as a passage whose w is learned. A pair is encoded only once,
  even if it is scored in several steps.
  """

  def setup(self) -> None:
    super().setup()
    bert, size = self.bert, self.bert.hidden_size
    # Both are normalized.
    vector = nn.with_logical_partitioning(bert.weights_init, ("norm",))
    self.start = self.param("start", vector, (size,))
    self.end = self.param("end", vector, (size,))
    self.end_norm = layer_norm(bert, "end_norm")
    axes = ("embed", "embed_out")
    self.recurrence = dense(bert, size, axes, "recurrence")
    self.scale = self.param("scale", nn.initializers.ones_init(), (1,))
    self.bias = self.param("bias", zeros("norm"), (1,))
    self.dropout = Dropout(bert.dropout_rate)

  def _scaled(self, states: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
    states = states.astype(jnp.float32)
    norms = jnp.linalg.norm(states, axis=-1, keepdims=True)
    return self.scale[0] * states / norms

  def ends(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
    """Returns the first state h_1, and the vector w of the end."""
    end = self.end_norm(self.end).astype(jnp.float32)
    return self._scaled(self.start), end

  def next_states(
    self, states: Float[AnyArray, "*b d"], vectors: Float[AnyArray, "*b d"]
  ) -> Float[Array, "*b d"]:
    """Returns h_{t+1} from h_t and the w of the chosen passages."""
    joined = jnp.concatenate([states, vectors], axis=-1)
    return self._scaled(self.recurrence(joined))

  def logits(
    self, states: Float[Array, "b t d"], vectors: Float[Array, "b n d"]
  ) -> Float[Array, "b t n"]:
    """Returns w_i · h_t + b of states and the passages of each query."""
    return jnp.einsum("btd,bnd->btn", states, vectors) + self.bias[0]

  def path_logits(
    self, pairs: Sequences, *, num_passages: int, num_hops: int
  ) -> Float[Array, "b {num_hops}+1 {num_passages}+1"]:
    """Returns the logits of all passages, and of the end, at each step.

    Pairs are laid out, `num_passages` for each query. The first `num_hops` of
    them are chosen, one in each step.
    """
    vectors = self.first_states(pairs).astype(jnp.float32)
    vectors = vectors.reshape(-1, num_passages, vectors.shape[-1])
    first, end = (
      jnp.broadcast_to(one, (len(vectors), 1, one.size)) for one in self.ends()
    )
    states = [first[:, 0]]
    for hop in range(num_hops):
      states.append(self.next_states(states[-1], vectors[:, hop]))
    ids = jnp.asarray(pairs.dropout_ids).reshape(-1, num_passages)[:, :1]
    keys = sequences.dropout_keys(ids, jnp.arange(num_hops + 1)[None])
    flat = jnp.stack(states, axis=1).reshape(-1, end.shape[-1])
    flat = self.dropout(flat, keys.reshape(-1))
    dropped = flat.reshape(-1, num_hops + 1, flat.shape[-1])
    return self.logits(dropped, jnp.concatenate([vectors, end], axis=1))

  def __call__(
    self, query: Int[AnyArray, "b q"], blocks: Int[AnyArray, "b n l"]
  ) -> Float[Array, "b 2 n+1"]:
    """Returns the logits of a path with the first passage, on padded input."""
    pairs = sequences.padded(self.join(query, blocks).token_ids)
    return self.path_logits(pairs, num_passages=blocks.shape[1], num_hops=1)


def pair_vectors(
  module: PathRetriever,
  params: Params,
  query: Int[AnyArray, "n q"],
  block: Int[AnyArray, "n l"],
) -> Float[Array, "n d"]:
  """Returns the w of each query with its block, both padded."""
  pairs = sequences.padded(module.join(query, block[:, None]).token_ids)
  vectors = module.apply({"params": params}, pairs, method="first_states")
  return jnp.asarray(vectors, jnp.float32)


def next_states(
  module: PathRetriever,
  params: Params,
  states: Float[AnyArray, "n d"],
  vectors: Float[AnyArray, "n d"],
) -> Float[Array, "n d"]:
  """Returns `PathRetriever.next_states`."""
  result = module.apply(
    {"params": params}, states, vectors, method="next_states"
  )
  return jnp.asarray(result)
