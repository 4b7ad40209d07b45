"""JSA against exact sums over a few blocks: its gradient, and its biases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from realm_jax.objectives.jsa import Proposals, draw, jsa
from realm_jax.objectives.marginal import Evidence

CHAINS, PROPOSALS, BURN_IN = 4000, 60, 30
# Scores f(x, z) of eight blocks, the posterior's, and log p(y_j|z, x) of two
# masks, which several blocks explain.
_RNG = np.random.default_rng(1)
SCORES = _RNG.normal(0, 1.0, 8)
POSTERIOR = _RNG.normal(0, 1.0, 8)
LOG_WORDS = np.minimum(_RNG.normal(-2.0, 1.0, (8, 2)), -0.1)
ALL, FEW = tuple(range(8)), (0, 2, 3, 5)


def _softmax(x):
  x = np.exp(x)
  return x / x.sum()


def _exact(support):
  """The slopes of −log p(y|x), and of the inclusive divergence, by scores."""
  p, q = np.zeros(8), np.zeros(8)
  p[list(support)] = _softmax(SCORES[list(support)])
  q[list(support)] = _softmax(POSTERIOR[list(support)])
  joint = p * np.exp(LOG_WORDS.sum(axis=1))
  posterior = joint / joint.sum()
  # By the scores, by the words' log-probabilities, and by the posterior's.
  return p - posterior, -np.stack([posterior] * 2, axis=1), q - posterior


def _slopes(support):
  """The slopes of each chain's loss by the same three."""
  given = jnp.array(SCORES), jnp.array(LOG_WORDS), jnp.array(POSTERIOR)
  places = jnp.array(support)

  def loss(given, proposals):
    scores, words, posterior = given
    blocks = places[proposals.places]
    words = words[blocks]
    weights = jnp.ones((1, 2))
    target = jax.lax.stop_gradient(words.sum(axis=-1))
    # Its log_prior is not read.
    evidence = Evidence(target, words, weights, target)
    found = jsa(
      evidence,
      log_prior=jax.nn.log_softmax(scores[places])[None],
      log_posterior=jax.nn.log_softmax(posterior[places])[None],
      proposals=proposals,
      form="joint",
      burn_in=BURN_IN,
    )
    return found.loss.mean

  log_q = jnp.tile(jax.nn.log_softmax(given[2][places]), (CHAINS, 1))
  proposals = draw(jax.random.key(0), log_q, num_proposals=PROPOSALS)
  by_chain = jax.tree.map(lambda x: x[:, None], proposals)
  return jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(given, by_chain)


def _deviations(slopes, exact):
  """How many standard errors each mean is from its exact value."""
  found = []
  for one, wanted in zip(slopes, exact, strict=True):
    one = np.asarray(one, np.float64)
    error = one.std(axis=0) / np.sqrt(len(one))
    found.append(np.abs(one.mean(axis=0) - wanted) / np.maximum(error, 1e-9))
  return np.concatenate([one.ravel() for one in found])


@pytest.mark.slow
@pytest.mark.parametrize("support", [ALL, FEW])
def test_the_mean_gradient_over_the_support_is_exact(support):
  assert _deviations(_slopes(support), _exact(support)).max() < 3


def test_a_chain_by_hand():
  # w of the proposals is 1, 2, 1/2, 3: the second and the last are accepted,
  # and the third would be with probability 1/4.
  ones = jnp.zeros((1, 4))
  proposals = Proposals(
    jnp.array([[1, 2, 0, 2]]), ones, jnp.array([[0.0, 0.99, 0.3, 0.9]])
  )
  log_words = jnp.log(jnp.array([[1.0, 2.0, 0.5, 3.0]])) - 1.0
  log_prior = jnp.log(jnp.array([[0.2, 0.3, 0.5]]))
  # log w is the sum of all three, of which that of the words is to be alone.
  proposals = proposals._replace(
    log_q=jnp.take_along_axis(log_prior, proposals.places, axis=1)
  )
  evidence = Evidence(ones, log_words[..., None], jnp.ones((1, 1)), log_words)
  found = jsa(
    evidence,
    log_prior=log_prior,
    log_posterior=jnp.log(jnp.array([[0.1, 0.8, 0.1]])),
    proposals=proposals,
    burn_in=1,
  ).means()
  # After the second, third and fourth proposal: 2, 2, and 3.
  assert found["reader_loss"] == pytest.approx(
    -(2 * np.log(2) + np.log(3)) / 3 + 1, rel=1e-5
  )
  assert found["retriever_loss"] == pytest.approx(-np.log(0.5), rel=1e-5)
  assert found["posterior_loss"] == pytest.approx(-np.log(0.1), rel=1e-5)
  assert found["acceptance_rate"] == pytest.approx(2 / 3)
  assert found["null_probability"] == pytest.approx(0.2)
