"""Masked words in blocks, and pointing at them beside filling them in."""

import functools

import jax
import numpy as np
import optax
import pytest

from realm_jax.training.stages import masked_words
from realm_jax.training.stages.masked_words import MaskTargets
from tests.training import tiny

CLS, SEP = tiny.CLS, tiny.SEP


# Two blocks for each of two queries, of which one has no body.
BLOCKS = np.array(
  [
    [
      [CLS, 20, 21, SEP, 20, 21, 7, 20, 21, SEP],
      [CLS, SEP, 21, 20, SEP, 0, 0, 0, 0, 0],
    ],
    [
      [CLS, 7, SEP, SEP, 0, 0, 0, 0, 0, 0],
      [CLS, SEP, 7, 21, 7, SEP, 0, 0, 0, 0],
    ],
  ],
  np.int32,
)


def _masks(*answers):
  token_ids = np.array(answers, np.int32)
  ones = np.ones_like(token_ids)
  return MaskTargets(ones, token_ids, (token_ids > 0).astype(np.float32))


@pytest.mark.parametrize(
  ("masks", "lengths", "spans"),
  [
    (
      _masks([20, 21], [7, 0]),
      [[5, 2], [0, 3]],
      [[0, 0, 0, 1], [0, 0, 3, 1], [1, 1, 0, 0], [1, 1, 2, 0]],
    ),
    # What the reader does not read of a body is no answer.
    (
      _masks([20, 21], [7, 0]),
      [[4, 2], [0, 2]],
      [[0, 0, 0, 1], [1, 1, 0, 0]],
    ),
    # A span may be too wide.
    (_masks([20, 21, 7], [9, 0, 0]), [[5, 2], [0, 3]], []),
  ],
)
def test_masked_words_are_found_in_bodies(masks, lengths, spans):
  find = functools.partial(
    masked_words.masked_spans, separator_id=SEP, max_width=2
  )
  found = jax.jit(find)(masks, BLOCKS, np.array(lengths, np.int32))
  assert np.argwhere(found).tolist() == spans


@pytest.mark.slow
def test_pointing_does_not_train_the_retriever():
  batch = tiny.batch_with_answers()

  @jax.jit
  @jax.grad
  def gradient(params):
    """Returns the gradient of what pointing adds to the loss."""
    without, both = (
      tiny.weighted(params, batch, span_weight=weight) for weight in (0.0, 1.0)
    )
    return both.loss.mean - without.loss.mean

  found = gradient(tiny.parameters("pretraining"))
  assert optax.tree.norm(found["retriever"]) < 1e-4
  assert optax.tree.norm(found["reader"]) > 1e-2
