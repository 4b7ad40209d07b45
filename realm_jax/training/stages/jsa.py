"""The blocks that `jsa` draws from: their support, and the draw in the step.

The retriever's query tower, which reads a masked sentence, and the posterior's,
which reads it unmasked, each search the index. What they find is the support.
The step draws from it the few blocks that the reader reads. The loss is that of
`realm_jax/objectives/jsa.py`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from realm_jax.models import AnyArray
from realm_jax.models.retriever import (
  Retriever,
  embed_blocks,
  embed_queries,
  relevance,
)
from realm_jax.objectives.jsa import Proposals, draw, jsa
from realm_jax.objectives.marginal import Evidence
from realm_jax.objectives.masked_lm import Objective
from realm_jax.objectives.weighted import WeightedLoss
from realm_jax.training.encoder_rows import Candidates
from realm_jax.training.stages.masked_words import unmasked
from realm_jax.training.stages.stage import StageContext
from realm_jax.training.step import TrainState

# What the key of a step is folded with. Those of the dropout masks are folded
# with the small numbers of the components.
_DRAW = 0x4A5341
# A logarithm whose exponential is 0, and which times 0 is 0.
_NO_WEIGHT = -1e9


class Support(NamedTuple):
  """The blocks that can be drawn for each query, the null block first.

  Attributes:
    vectors: Vectors as the generation has them; 0 for the null block.
    is_block: Whether a block can be drawn. The source and its copies cannot,
      nor can one that stands there before.
  """

  vectors: Float[AnyArray, "b s d"]
  is_block: Bool[AnyArray, "b s"]

  @classmethod
  def of(
    cls,
    rows: Int[np.ndarray, "b s"],
    source_hash: Int[np.ndarray, " b"],
    context: StageContext,
  ) -> "Support":
    """Returns the support of the null block and what the towers have found."""
    assert context.generation is not None
    found = rows[:, 1:]
    is_other = context.corpus.content_hashes[found] != source_hash[:, None]
    before = np.tri(rows.shape[1], k=-1, dtype=bool)
    is_repeated = ((rows[:, :, None] == rows[:, None]) & before).any(axis=2)
    vectors = context.generation.vectors(found)
    return cls(
      np.pad(vectors, ((0, 0), (1, 0), (0, 0))),
      np.pad(is_other, ((0, 0), (1, 0)), constant_values=True) & ~is_repeated,
    )

  def log_probs(
    self,
    queries: Float[Array, "b d"],
    places: Int[AnyArray, "b r"],
    current: Float[Array, "b r d"],
    *,
    score_scale: float,
  ) -> Float[Array, "b s"]:
    """Returns the log-probabilities of the blocks, given queries.

    All blocks score as the generation has them. If those that are read scored
    as the block tower embeds them now, its drift since the generation would
    decide between them, the null block and the rest of the support. The tower
    learns from the gradient that their vectors would have.

    Args:
      queries: Vectors of one of the towers.
      places: Places of blocks that are read; 0 for the null block.
      current: Their vectors now; those of one place must be equal. The null
        block, which no generation has, scores by its own.
    """
    by_query = jnp.arange(len(queries))[:, None]
    stored = jnp.asarray(self.vectors)
    learning = current - jax.lax.stop_gradient(current)
    is_null = (jnp.asarray(places) == 0)[..., None]
    vectors = stored.at[by_query, places].set(
      jnp.where(is_null, current, stored[by_query, places] + learning)
    )
    scores = relevance(queries, vectors, score_scale=score_scale)
    return jax.nn.log_softmax(jnp.where(self.is_block, scores, -jnp.inf))


def propose(
  retriever: Retriever,
  state: TrainState,
  batch: Any,
  num_proposals: int,
  *,
  seed: int,
) -> Any:
  """Draws the blocks that a step reads, with the current posterior tower.

  The null block and the drawn ones are left as candidates, in place of the
  whole support. q is the one from which is drawn, so that the chain is exact;
  it has no dropout.
  """
  tokens, numbers = batch.candidates
  queries = embed_queries(
    retriever, state.params["posterior"], unmasked(batch.query, batch.masks)
  )
  null = embed_blocks(retriever, state.params["retriever"], tokens[:1, 0])
  first = jnp.zeros((len(queries), 1), jnp.int32)
  log_q = batch.support.log_probs(
    queries,
    first,
    jnp.broadcast_to(null[:, None], (len(queries), 1, null.shape[1])),
    score_scale=retriever.score_scale,
  )
  key = jax.random.fold_in(jax.random.key(seed), state.step)
  key = jax.random.fold_in(key, _DRAW)
  proposals = draw(key, log_q, num_proposals=num_proposals)
  places = jnp.concatenate([first, proposals.places], axis=1)
  candidates = Candidates(
    jnp.take_along_axis(tokens, places[..., None], axis=1),
    jnp.take_along_axis(numbers, places, axis=1),
  )
  return batch._replace(candidates=candidates, proposals=proposals)


def of_proposals(
  support: Support,
  proposals: Proposals,
  queries: Float[Array, "b d"],
  posterior: Float[Array, "b d"],
  candidates: Float[Array, "b k d"],
  *,
  score_scale: float,
  **settings: Any,
) -> tuple[Objective, Float[Array, "b k"]]:
  """Returns the objective of proposals, and their scores for the metrics.

  A softmax of the scores weights each proposal by p(z|x) / q(z|x, y), so that
  sums over the proposals estimate those over p(z|x). The null block, which is
  read besides, has no weight.

  Queries are embedded by the retriever's tower and by the posterior's. The
  candidates are the null block and the proposals. The other settings are those
  of `jsa`.
  """
  places = jnp.pad(jnp.asarray(proposals.places), ((0, 0), (1, 0)))
  log_prior, log_posterior = (
    support.log_probs(one, places, candidates, score_scale=score_scale)
    for one in (queries, posterior)
  )

  def objective(evidence: Evidence) -> WeightedLoss:
    return jsa(
      evidence._replace(
        log_prior=evidence.log_prior[:, 1:],
        token_likelihood=evidence.token_likelihood[:, 1:],
        target_likelihood=evidence.target_likelihood[:, 1:],
      ),
      log_prior=log_prior,
      log_posterior=log_posterior,
      proposals=proposals,
      **settings,
    )

  log_weights = (
    jnp.take_along_axis(log_prior, proposals.places, axis=1) - proposals.log_q
  )
  null = jnp.full((len(queries), 1), _NO_WEIGHT)
  return objective, jnp.concatenate([null, log_weights], axis=1)
