"""Losses of a retriever that learns from rewards of the lists it has served.

A policy shows k of n candidates one after the other, each drawn from a softmax
of score / T over those that are left (Plackett and Luce):

    log π(a) = Σ_j [s(a_j) / T − log Σ_z e^{s(z) / T}], z not in a_1 … a_{j−1}
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from realm_jax.models import AnyArray
from realm_jax.objectives.ranking import kl_divergence
from realm_jax.objectives.weighted import Average

# A loss of each list, its weight, and metrics.
Losses = tuple[Float[Array, " b"], Float[Array, " b"], dict[str, Average]]
# Score of blocks that cannot be drawn.
_NOT_LEFT = -1e9


class ServedLists(NamedTuple):
  """Lists that were served, n candidates each, of which k were shown.

  Attributes:
    is_block: Whether a candidate is one, and no padding.
    scores: f(x, z) of the candidates when they were served.
    shown: Places of the blocks that were shown, in their order; −1 is padding.
    temperature: T by which the order was drawn, or 1 where it was not.
    advantages: What followed from showing each block, less a baseline.
    rewards: Rewards of the blocks that were shown.
    weights: 1 of a list to learn from, or else 0.
  """

  is_block: Bool[AnyArray, "b n"]
  scores: Float[AnyArray, "b n"]
  shown: Int[AnyArray, "b k"]
  temperature: Float[AnyArray, " b"]
  advantages: Float[AnyArray, "b k"]
  rewards: Float[AnyArray, "b k"]
  weights: Float[AnyArray, " b"]


def order_log_probabilities(
  scores: Float[AnyArray, "b n"], lists: ServedLists
) -> Float[Array, "b k"]:
  """Returns log π of each block that was shown, after those before it.

  It is 0 at padding.

  Example, with a list that shows its second candidate first:
    >>> scores = jnp.log(jnp.array([[2.0, 1.0]]))
    >>> is_block, one = jnp.array([[True, True]]), jnp.ones(1)
    >>> order, gains = jnp.array([[1, 0]]), jnp.array([[1.0, 0.0]])
    >>> given = is_block, scores, order, one, gains, gains, one
    >>> log_p = order_log_probabilities(scores, ServedLists(*given))
    >>> jnp.exp(log_p)
    Array([[0.333, 1.   ]], dtype=float32)
  """
  logits = jnp.asarray(scores) / jnp.asarray(lists.temperature)[:, None]
  shown = jnp.asarray(lists.shown)
  is_drawn = shown[..., None] == jnp.arange(logits.shape[1])[None, None]
  is_before = jnp.cumsum(is_drawn, axis=1) - is_drawn > 0
  is_left = jnp.asarray(lists.is_block)[:, None] & ~is_before
  left = jnp.where(is_left, logits[:, None], _NOT_LEFT)
  own = jnp.take_along_axis(logits, jnp.maximum(shown, 0), axis=1)
  log_p = own - jax.nn.logsumexp(left, axis=-1)
  return jnp.where(shown >= 0, log_p, 0.0)


def policy_gradient(
  scores: Float[Array, "b n"], lists: ServedLists, *, clip_ratio: float
) -> Losses:
  """Returns −Σ_j A_ij log π(a_ij) of each list i, and its importance ratio w_i.

  The ratio π(a) / π_served(a), without a gradient, is at most `clip_ratio`. It
  is the weight of the list in a mean: the sum of the weighted losses is divided
  by that of the ratios (Swaminathan and Joachims 2015, "The Self-Normalized
  Estimator for Counterfactual Learning"). What the retriever would hardly show
  any more has hardly any weight, so nothing pushes it down further. The metric
  `ratio` tells how far the retriever is from what has served the lists,
  `clipped` how many of the ratios were clipped.

  Example, with a list that shows its second candidate first:
    >>> scores = jnp.log(jnp.array([[2.0, 1.0]]))
    >>> is_block, one = jnp.array([[True, True]]), jnp.ones(1)
    >>> order, gains = jnp.array([[1, 0]]), jnp.array([[1.0, 0.0]])
    >>> given = is_block, scores, order, one, gains, gains, one
    >>> loss, _, metrics = policy_gradient(
    ...   scores, ServedLists(*given), clip_ratio=2.0
    ... )
    >>> print(loss, metrics["ratio"].mean)
    [1.099] 1.0
  """
  log_p = order_log_probabilities(scores, lists)
  served = order_log_probabilities(lists.scores, lists).sum(axis=1)
  change = jax.lax.stop_gradient(log_p.sum(axis=1)) - served
  limit = jnp.log(clip_ratio)
  weights = jnp.asarray(lists.weights)
  ratios = jnp.exp(jnp.minimum(change, limit))
  losses = -jnp.sum(jnp.asarray(lists.advantages) * log_p, axis=1)
  metrics = {
    "ratio": Average.of(ratios, weights),
    "clipped": Average.of(change > limit, weights),
  }
  return losses, weights * ratios, metrics


def pairwise(scores: Float[Array, "b n"], lists: ServedLists) -> Losses:
  """Returns the mean of log(1 + e^(s_j − s_i)) over pairs with r_i > r_j.

  The pairs are of blocks that were shown (RankNet, Burges et al. 2005). It asks
  for no probability, and a list whose rewards are all equal teaches nothing.

  Example, with a list that shows its second candidate first:
    >>> scores = jnp.log(jnp.array([[2.0, 1.0]]))
    >>> is_block, one = jnp.array([[True, True]]), jnp.ones(1)
    >>> order, gains = jnp.array([[1, 0]]), jnp.array([[1.0, 0.0]])
    >>> given = is_block, scores, order, one, gains, gains, one
    >>> loss, _, metrics = pairwise(scores, ServedLists(*given))
    >>> print(loss, metrics["pair_accuracy"].mean)
    [1.099] 0.0
  """
  shown, rewards = jnp.asarray(lists.shown), jnp.asarray(lists.rewards)
  own = jnp.take_along_axis(scores, jnp.maximum(shown, 0), axis=1)
  is_shown = shown >= 0
  is_pair = rewards[:, :, None] > rewards[:, None, :]
  is_pair &= is_shown[:, :, None] & is_shown[:, None, :]
  losses = jax.nn.softplus(own[:, None, :] - own[:, :, None])
  count = is_pair.sum(axis=(1, 2))
  mean = jnp.sum(losses, axis=(1, 2), where=is_pair) / jnp.maximum(count, 1)
  weights = jnp.asarray(lists.weights) * (count > 0)
  right = jnp.sum(losses < jnp.log(2.0), axis=(1, 2), where=is_pair)
  metrics = {
    "pair_accuracy": Average.of(right / jnp.maximum(count, 1), weights)
  }
  return mean, weights, metrics


def contrastive(
  scores: Float[Array, "b m"],
  block_ids: UInt32[AnyArray, "b n"],
  lists: ServedLists,
) -> Losses:
  """Returns −log p of the blocks with a reward, among those that have none.

  These are the blocks that were shown in vain, and the candidates of all other
  queries, m = b · n, but for those that are the query's candidates, too: of
  candidates that were not shown nothing is known. A list without a positive
  reward teaches nothing, and it matters not whether it was drawn.

  Example, with two lists of one block each, the first of them rewarded:
    >>> one, order = jnp.ones((2, 1)), jnp.zeros((2, 1), int)
    >>> rewards, weights = jnp.array([[1.0], [0.0]]), jnp.ones(2)
    >>> lists = ServedLists(one > 0, one, order, weights, one, rewards, weights)
    >>> block_ids = jnp.array([[7], [8]], "uint32")
    >>> loss, weights, _ = contrastive(2.0 * jnp.eye(2), block_ids, lists)
    >>> print(loss[0], weights)
    0.127 [1. 0.]
  """
  size = block_ids.shape[1]
  ids, shown = jnp.asarray(block_ids), jnp.asarray(lists.shown)
  is_own = (ids.reshape(1, -1, 1) == ids[:, None]).any(axis=2)
  others = jnp.asarray(lists.is_block).reshape(1, -1) & ~is_own
  place = jnp.arange(len(ids))[:, None] * size + jnp.maximum(shown, 0)
  own = jnp.take_along_axis(scores, place, axis=1)
  is_good = (jnp.asarray(lists.rewards) > 0) & (shown >= 0)
  in_vain = jnp.where((shown >= 0) & ~is_good, own, _NOT_LEFT)
  negatives = jnp.where(others, scores, _NOT_LEFT)
  rest = jax.nn.logsumexp(
    jnp.concatenate([in_vain, negatives], axis=1), axis=1, keepdims=True
  )
  losses = jax.nn.softplus(rest - own)
  count = is_good.sum(axis=1)
  mean = jnp.sum(losses, axis=1, where=is_good) / jnp.maximum(count, 1)
  weights = jnp.asarray(lists.weights) * (count > 0)
  best = jnp.max(jnp.where(is_good, own, -jnp.inf), axis=1)
  strongest = jnp.maximum(in_vain.max(axis=1), negatives.max(axis=1))
  return mean, weights, {"accuracy": Average.of(best > strongest, weights)}


def divergence(
  scores: Float[Array, "b m"],
  start: Float[Array, "b m"],
  lists: ServedLists,
) -> Float[Array, " b"]:
  """Returns KL(p(z|x) ‖ p_start(z|x)) at T, over the blocks of all lists.

  The blocks of other queries are among them, so that blocks that were no
  candidates do not rise unnoticed.

  Example:
    >>> start, is_block = jnp.zeros((1, 2)), jnp.ones((1, 2), bool)
    >>> order, gains = jnp.array([[1, 0]]), jnp.array([[1.0, 0.0]])
    >>> given = is_block, start, order, jnp.ones(1), gains, gains, jnp.ones(1)
    >>> scores = jnp.log(jnp.array([[3.0, 1.0]]))
    >>> divergence(scores, start, ServedLists(*given))
    Array([0.131], dtype=float32)
  """
  is_block = jnp.asarray(lists.is_block).reshape(1, -1)
  temperature = jnp.asarray(lists.temperature)[:, None]
  return kl_divergence(
    scores / temperature,
    jax.lax.stop_gradient(start) / temperature,
    jnp.broadcast_to(is_block, scores.shape),
  )
