"""Losses of rewards, against enumerations and loops in float64."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from realm_jax.objectives.feedback import (
  ServedLists,
  contrastive,
  divergence,
  order_log_probabilities,
  pairwise,
  policy_gradient,
)

_RNG = np.random.default_rng(0)
_N, _K, _T = 4, 2, 0.7
# The last candidate of all queries is padding.
_IS_BLOCK = np.array([True, True, True, False])


def _lists(shown, *, scores, rewards):
  size = len(shown)
  return ServedLists(
    np.tile(_IS_BLOCK, (size, 1)),
    np.tile(np.asarray(scores, np.float32), (size, 1)),
    np.array(shown),
    np.full(size, _T, np.float32),
    rewards.astype(np.float32),
    rewards.astype(np.float32),
    np.ones(size, np.float32),
  )


def _log_p(scores, order, temperature):
  left, total = {*np.flatnonzero(_IS_BLOCK).tolist()}, []
  for place in order:
    mass = sum(np.exp(scores[z] / temperature) for z in left)
    total.append(scores[place] / temperature - np.log(mass))
    left.remove(place)
  return total


_ORDERS = [*itertools.permutations(range(3), _K)]


def test_orders_have_the_probabilities_of_plackett_and_luce():
  scores = _RNG.normal(size=_N)
  lists = _lists(_ORDERS, scores=scores, rewards=np.zeros((len(_ORDERS), _K)))
  log_p = order_log_probabilities(lists.scores, lists)
  expected = [_log_p(scores, order, _T) for order in _ORDERS]
  np.testing.assert_allclose(log_p, expected, rtol=1e-5, atol=1e-6)
  assert np.exp(log_p.sum(axis=1)).sum() == pytest.approx(1, abs=1e-5)
  # Padding behind the blocks that were shown changes nothing.
  longer = np.pad(_ORDERS, ((0, 0), (0, 1)), constant_values=-1)
  padded = order_log_probabilities(lists.scores, lists._replace(shown=longer))
  np.testing.assert_array_equal(padded[:, :_K], log_p)
  np.testing.assert_array_equal(padded[:, _K:], 0)


def test_the_mean_gradient_is_that_of_the_expected_reward():
  scores = _RNG.normal(size=_N)
  # A list has a reward, which follows from its blocks and their order.
  reward = _RNG.normal(size=len(_ORDERS))
  lists = _lists(_ORDERS, scores=scores, rewards=np.zeros((len(_ORDERS), _K)))
  advantages = np.tile(np.float32(reward - 0.3)[:, None], (1, _K))
  lists = lists._replace(advantages=advantages)

  def probability(x):
    tiled = jnp.tile(x[None], (len(_ORDERS), 1))
    return jnp.exp(order_log_probabilities(tiled, lists).sum(axis=1))

  served = jnp.asarray(scores, jnp.float32)
  expected = jax.grad(lambda x: -jnp.sum(probability(x) * reward))(served)
  probabilities = probability(served)

  def mean(x):
    tiled = jnp.tile(x[None], (len(_ORDERS), 1))
    losses, weights, _ = policy_gradient(tiled, lists, clip_ratio=4.0)
    np.testing.assert_allclose(weights, 1.0, rtol=1e-5)
    return jnp.sum(jax.lax.stop_gradient(probabilities) * losses)

  # A baseline changes no mean gradient.
  np.testing.assert_allclose(jax.grad(mean)(served), expected, atol=1e-5)


def test_ratios_are_clipped_and_lists_without_weight_teach_nothing():
  served, scores = _RNG.normal(size=_N), 5 * _RNG.normal(size=_N)
  rewards = _RNG.normal(size=(len(_ORDERS), _K))
  lists = _lists(_ORDERS, scores=served, rewards=rewards)
  lists = lists._replace(weights=np.float32(np.arange(len(_ORDERS)) % 2))
  tiled = jnp.tile(jnp.asarray(scores, jnp.float32)[None], (len(_ORDERS), 1))
  losses, weights, metrics = policy_gradient(tiled, lists, clip_ratio=2.0)
  logs = np.array([_log_p(scores, order, _T) for order in _ORDERS])
  before = np.array([_log_p(served, order, _T) for order in _ORDERS])
  ratios = np.exp(logs.sum(axis=1) - before.sum(axis=1))
  np.testing.assert_allclose(
    weights, np.minimum(ratios, 2) * lists.weights, rtol=1e-4
  )
  expected = -(lists.advantages * logs).sum(axis=1)
  np.testing.assert_allclose(losses, expected, rtol=1e-4)
  is_clipped = (ratios > 2)[lists.weights > 0]
  assert metrics["clipped"].mean == pytest.approx(is_clipped.mean())


def test_pairs_are_of_shown_blocks_with_different_rewards():
  scores = _RNG.normal(size=(3, _N)).astype(np.float32)
  shown = np.array([[2, 0, 1], [1, 2, -1], [0, 1, 2]])
  rewards = np.array([[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.2, 0.2, 0.2]])
  lists = _lists(shown, scores=scores[0], rewards=rewards)
  losses, weights, _ = pairwise(jnp.asarray(scores), lists)
  for row, (places, own) in enumerate(zip(shown, rewards, strict=True)):
    pairs = [
      np.log1p(np.exp(scores[row, worse] - scores[row, better]))
      for (better, r), (worse, q) in itertools.permutations(
        [(p, r) for p, r in zip(places, own, strict=True) if p >= 0], 2
      )
      if r > q
    ]
    assert weights[row] == bool(pairs)
    assert losses[row] == pytest.approx(np.mean(pairs or [0]), abs=1e-6)


def test_a_rewarded_block_is_told_from_those_without_reward():
  # Three candidates of two queries, one of which both have.
  ids = np.array([[1, 2, 3], [4, 2, 5]], np.uint32)
  scores = _RNG.normal(size=(2, 6)).astype(np.float32)
  lists = ServedLists(
    np.array([[True, True, True], [True, True, False]]),
    scores[:, :3],
    np.array([[2, 0], [0, -1]]),
    np.ones(2, np.float32),
    np.zeros((2, 2), np.float32),
    np.array([[0.0, 1.0], [0.5, 0.0]], np.float32),
    np.ones(2, np.float32),
  )
  losses, weights, metrics = contrastive(jnp.asarray(scores), ids, lists)
  # The first query's block 1 against block 3, shown in vain, and 4; block 2 is
  # its own candidate, and 5 is padding. The second query's 4 against 1 and 3.
  for row, positive, negatives in ((0, 0, [2, 3]), (1, 3, [0, 2])):
    s = scores[row]
    expected = -np.log(
      np.exp(s[positive]) / np.exp(s[[positive, *negatives]]).sum()
    )
    assert losses[row] == pytest.approx(expected, rel=1e-4)
  assert weights.tolist() == [1, 1]
  none = lists._replace(rewards=np.zeros((2, 2), np.float32))
  assert contrastive(jnp.asarray(scores), ids, none)[1].tolist() == [0, 0]
  assert 0 <= metrics["accuracy"].mean <= 1


def test_the_divergence_is_over_the_blocks_of_all_lists():
  scores, start = _RNG.normal(size=(2, 2, 2 * _N)).astype(np.float32)
  lists = _lists([(0, 1)] * 2, scores=start[0, :_N], rewards=np.zeros((2, 2)))
  is_block = np.tile(_IS_BLOCK, 2)
  own = jnp.asarray(scores)
  divergences = divergence(own, jnp.asarray(start), lists)
  for row in range(2):
    p, q = (np.exp(x[row, is_block] / _T) for x in (scores, start))
    p, q = p / p.sum(), q / q.sum()
    assert divergences[row] == pytest.approx(
      np.sum(p * np.log(p / q)), rel=1e-4
    )
  gradient = jax.grad(lambda x: divergence(own, x, lists).sum())
  np.testing.assert_array_equal(gradient(jnp.asarray(start)), 0)
