"""Contrastive losses: a second implementation, in loops of float64."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from realm_jax.objectives.contrastive import BlockHashes, contrastive_loss
from realm_jax.training.encoder_inputs import to_words

N, K, D, SCALE = 6, 3, 5, 2.0


def _case(seed=0):
  """Vectors, the blocks' hashes, those that are relevant, and padding."""
  rng = np.random.default_rng(seed)
  queries = rng.normal(size=(N, D)).astype(np.float32)
  blocks = rng.normal(size=(N, K, D)).astype(np.float32)
  hashes = np.arange(1, 1 + N * K).reshape(N, K)
  # Two queries have the same block, and one's negative is another's block.
  hashes[1, 0] = hashes[0, 0]
  hashes[2, 1] = hashes[3, 0]
  # A query knows of a second block that is relevant to it.
  positives = np.stack([hashes[:, 0], hashes[:, 0]], axis=1)
  positives[4, 1] = hashes[5, 2]
  is_block = np.ones((N, K), bool)
  is_block[0, 2] = False
  return queries, blocks, hashes, positives, is_block


def _by_hand(case, *, shared, margin, symmetric):
  queries, blocks, hashes, positives, is_block = case
  scores = SCALE * np.einsum(
    "nd,mkd->nmk", queries.astype(np.float64), blocks.astype(np.float64)
  )

  def loss(own, others):
    return np.log(np.exp([own, *others]).sum()) - own

  def counts(i, j, k):
    is_negative = is_block[j, k] and hashes[j, k] not in positives[i]
    limit = np.inf if margin is None else scores[i, i, 0] - margin
    return is_negative and scores[i, j, k] <= limit

  losses, correct = [], []
  for i in range(N):
    others = [
      scores[i, j, k]
      for j, k in itertools.product(range(N), range(K))
      if counts(i, j, k) and (shared or k == 0 or j == i)
    ]
    own = scores[i, i, 0]
    losses.append(loss(own, others))
    correct.append(own >= max(others, default=own))
    if symmetric:
      queries_of = [scores[j, i, 0] for j in range(N) if counts(j, i, 0)]
      losses[-1] = (losses[-1] + loss(own, queries_of)) / 2
  return np.mean(losses), np.array(correct)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("margin", [None, 0.5])
@pytest.mark.parametrize("symmetric", [True, False])
def test_equals_a_loop(shared, margin, symmetric):
  case = _case()
  queries, blocks, hashes, positives, is_block = case
  settings = {"shared": shared, "margin": margin, "symmetric": symmetric}
  expected, correct = _by_hand(case, **settings)
  known = BlockHashes(to_words(hashes), to_words(positives), is_block)
  some = jnp.arange(N) % 3 == 0
  means = contrastive_loss(
    *map(jnp.asarray, (queries, blocks)),
    known.negatives(shared=shared),
    score_scale=SCALE,
    groups={"some": some},
    **settings,
  ).means()
  assert means["loss"] == pytest.approx(expected, rel=1e-5)
  assert means["accuracy"] == pytest.approx(correct.mean())
  assert means["accuracy_some"] == pytest.approx(correct[::3].mean())
