"""Masked words in blocks, and pointing at them beside filling them in."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from realm_jax.training.stages import masked_words
from realm_jax.training.stages.masked_words import MaskTargets
from realm_jax.training.stages.pretraining import Pretraining
from tests.training import tiny

CLS, SEP, MASK = tiny.CLS, tiny.SEP, tiny.MASK


def _masks(*answers):
  width = max(map(len, answers))
  shape = (len(answers), width)
  token_ids, weights = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
  for row, answer in enumerate(answers):
    token_ids[row, : len(answer)] = answer
    weights[row, : len(answer)] = 1
  positions = np.ones(shape, np.int32)
  return MaskTargets(positions, token_ids, weights)


def _blocks():
  """Two blocks for each of two queries, of which one has no body."""
  blocks = [
    [CLS, 20, 21, SEP, 20, 21, 7, 20, 21, SEP],
    [CLS, SEP, 21, 20, SEP, 0, 0, 0, 0, 0],
    [CLS, 7, SEP, SEP, 0, 0, 0, 0, 0, 0],
    [CLS, SEP, 7, 21, 7, SEP, 0, 0, 0, 0],
  ]
  return np.array(blocks, np.int32).reshape(2, 2, -1)


def _spans(masks, blocks, lengths):
  find = functools.partial(
    masked_words.masked_spans, separator_id=SEP, max_width=2
  )
  return np.asarray(jax.jit(find)(masks, blocks, np.array(lengths, np.int32)))


def test_masked_words_are_found_in_bodies():
  lengths = [[5, 2], [0, 3]]
  found = _spans(_masks([20, 21], [7]), _blocks(), lengths)
  assert np.argwhere(found).tolist() == [
    [0, 0, 0, 1],
    [0, 0, 3, 1],
    [1, 1, 0, 0],
    [1, 1, 2, 0],
  ]
  # What the reader does not read of a body is no answer.
  cut = _spans(_masks([20, 21], [7]), _blocks(), [[4, 2], [0, 2]])
  assert np.argwhere(cut).tolist() == [[0, 0, 0, 1], [1, 1, 0, 0]]
  # On the host, a title counts, too.
  on_host = masked_words.occurrences(_masks([20, 21], [7]), _blocks())
  assert np.argwhere(on_host)[0].tolist() == [0, 0, 1]
  # A span may be too wide.
  for answer in ([21, 21], [20, 21, 7]):
    assert not _spans(_masks(answer, [9]), _blocks(), lengths).any()


@pytest.mark.slow
def test_pointing_does_not_train_the_retriever():
  batch = tiny.batch("pretraining")
  # What stands first in the second block of each query is masked.
  body = 1 + np.argmax(batch.candidates.tokens[:, 1] == SEP, axis=1)
  token_ids = batch.masks.token_ids.copy()
  token_ids[:, 0] = batch.candidates.tokens[np.arange(tiny.BATCH), 1, body]
  batch = batch._replace(masks=batch.masks._replace(token_ids=token_ids))
  of = {
    weight: Pretraining(
      num_candidates=tiny.CANDIDATES,
      span_weight=weight,
    )
    for weight in (0.0, 1.0)
  }

  @jax.jit
  @jax.grad
  def gradient(params):
    """Returns the gradient of what pointing adds to the loss."""
    without, both = (
      tiny.weighted("pretraining", params, batch, of=of[weight])
      for weight in (0.0, 1.0)
    )
    return both.loss.mean - without.loss.mean

  found = gradient(tiny.parameters("pretraining"))
  largest = {
    component: max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(of))
    for component, of in found.items()
  }
  assert largest["retriever"] < 1e-5
  assert largest["reader"] > 1e-2
