"""Ranking losses and distillation, against loops in float64."""

import jax.numpy as jnp
import numpy as np
import pytest

from realm_jax.objectives.ranking import DISTILLATIONS, RANKINGS

RNG = np.random.default_rng(0)
SCORES, TEACHER = RNG.normal(size=(2, 4, 3))
# One query has no other block.
IS_BLOCK = np.array(
  [[True, True, True], [True, False, True], [True, False, False], [True] * 3]
)


def _softmax(values):
  powers = np.exp(values)
  return powers / powers.sum()


def _by_hand(name, scores, teacher):
  own, others = scores[0], scores[1:]
  if name == "listwise":
    return -np.log(_softmax(scores)[0])
  if name == "binary":
    signed = [own, *-others]
    return np.mean([np.log1p(np.exp(-value)) for value in signed])
  if name == "kl":
    target, found = _softmax(teacher), _softmax(scores)
    return np.sum(target * np.log(target / found))
  if not len(others):
    return 0.0
  if name == "pairwise":
    return np.mean(np.log1p(np.exp(others - own)))
  margins = (teacher[0] - teacher[1:]) - (own - others)
  return np.mean(margins**2)


@pytest.mark.parametrize("name", [*RANKINGS, *DISTILLATIONS])
def test_equals_a_loop(name):
  scores, teacher, is_block = map(jnp.asarray, (SCORES, TEACHER, IS_BLOCK))
  if name in RANKINGS:
    found = RANKINGS[name](scores, is_block)
  else:
    found = DISTILLATIONS[name](teacher, scores, is_block)
  expected = [
    _by_hand(name, s[b], t[b])
    for s, t, b in zip(SCORES, TEACHER, IS_BLOCK, strict=True)
  ]
  np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)
