"""Weighted sums: what micro-batches add up to."""

import functools

import jax
import numpy as np
import pytest

from realm_jax.objectives.masked_lm import masked_lm_loss
from realm_jax.objectives.open_qa import open_qa_loss
from realm_jax.objectives.weighted import Average
from tests.objectives import test_objectives, test_open_qa_loss

# Unequal, so that a mean of means would differ from the mean.
PARTS = slice(0, 1), slice(1, None)


@pytest.mark.parametrize(
  ("function", "example"),
  [
    pytest.param(masked_lm_loss, test_objectives.example(), id="masked_lm"),
    pytest.param(open_qa_loss, test_open_qa_loss.example(0), id="open_qa"),
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
    functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6),
    (np.concatenate(gradients) / added.loss.weight, added.means()),
    (gradient / whole.loss.weight, whole.means()),
  )


@pytest.mark.parametrize(
  ("weights", "mean"),
  [([3.0, 1.0], 2.5), ([0.3, 0.1], 2.5), ([0.0, 0.1], 4.0), ([0.0, 0.0], 0.0)],
)
def test_a_mean_is_divided_by_its_weights_however_small(weights, mean):
  values = np.array([2.0, 4.0], np.float32)

  def average(values):
    return Average.of(values, np.array(weights)).mean

  value, slopes = jax.value_and_grad(average)(values)
  assert value == pytest.approx(mean)
  expected = np.array(weights) / (sum(weights) or 1)
  np.testing.assert_allclose(slopes, expected, rtol=1e-6)
