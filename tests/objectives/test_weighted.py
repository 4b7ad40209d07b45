"""Weighted sums: what micro-batches add up to."""

import functools

import jax
import numpy as np
import pytest

from realm_jax.objectives.masked_lm import masked_lm_loss
from realm_jax.objectives.open_qa import open_qa_loss

EXAMPLES = 6
# Unequal, so that a mean of means would differ from the mean.
PARTS = (slice(0, 1), slice(1, 3), slice(3, 6))


def _masked_lm():
  rng = np.random.default_rng(0)
  # The first example has no masks, as where its words could not be found.
  weights = np.arange(3) < np.array([0, 3, 1, 2, 3, 1])[:, None]
  return (
    rng.normal(size=(EXAMPLES, 4)).astype(np.float32),
    rng.normal(size=(EXAMPLES, 4, 3, 5)).astype(np.float32),
    rng.integers(0, 5, (EXAMPLES, 3)).astype(np.int32),
    weights.astype(np.float32),
  )


def _open_qa():
  rng = np.random.default_rng(1)
  spans = (EXAMPLES, 2, 4, 3)
  return (
    rng.normal(size=(EXAMPLES, 5)).astype(np.float32),
    rng.random((EXAMPLES, 5)) < 0.3,
    rng.normal(size=spans).astype(np.float32),
    rng.random(spans) < 0.8,
    rng.random(spans) < 0.1,
  )


@pytest.mark.parametrize(
  ("function", "example"),
  [
    pytest.param(masked_lm_loss, _masked_lm(), id="masked_lm"),
    pytest.param(open_qa_loss, _open_qa(), id="open_qa"),
  ],
)
def test_micro_batches_add_up_to_the_batch(function, example):
  # Operation by operation it would compile for longer.
  @jax.jit
  @functools.partial(jax.grad, has_aux=True)
  def evaluate(first, *others):
    weighted = function(first, *others)
    return weighted.loss.total, weighted

  gradient, whole = evaluate(*example)
  gradients, parts = zip(
    *(evaluate(*(array[rows] for array in example)) for rows in PARTS),
    strict=True,
  )
  added = jax.tree.map(lambda *leaves: sum(leaves), *parts)
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6),
    (np.concatenate(gradients) / added.loss.weight, added.means()),
    (gradient / whole.loss.weight, whole.means()),
  )
