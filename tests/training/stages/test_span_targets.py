"""Pointing at masked words, beside filling them in."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from realm_jax.models.packing import TokenRows
from realm_jax.objectives.open_qa import span_loss
from realm_jax.training import stage_losses
from realm_jax.training.batches import MaskTargets, ReadingBatch, SpanTargets
from realm_jax.training.packing.packer import padded
from realm_jax.training.stages.pretraining import Pretraining
from realm_jax.training.stages.reading import Reading
from realm_jax.training.stages.span_targets import masked_spans
from realm_jax.training.stages.stage import JointRows, Models
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


def _joint():
  """Two queries with two blocks each, of which one has no body."""
  rows = [
    [CLS, MASK, 9, SEP, 20, 21, 7, 20, 21, SEP],
    [CLS, MASK, 9, SEP, 21, 20, SEP, 0, 0, 0],
    [CLS, MASK, 9, SEP, SEP, 0, 0, 0, 0, 0],
    [CLS, MASK, 9, SEP, 7, 21, 7, SEP, 0, 0],
  ]
  numbers = np.arange(4, dtype=np.uint32)
  return JointRows(
    TokenRows(np.array(rows, np.int32), numbers),
    np.full((2, 2), 4, np.int32),
    np.array([[5, 2], [0, 3]], np.int32),
  )


def test_masked_words_are_found_in_bodies():
  targets = masked_spans(
    _joint(), _masks([20, 21], [7]), num_starts=5, max_width=2
  )
  assert np.argwhere(targets.is_answer).tolist() == [
    [0, 0, 0, 1],
    [0, 0, 3, 1],
    [1, 1, 0, 0],
    [1, 1, 2, 0],
  ]
  assert targets.body_length.tolist() == [[5, 2], [0, 3]]
  # A span does not go on from one block to the next, and may be too wide.
  for answer in ([21, 21], [20, 21, 7]):
    none = masked_spans(
      _joint(), _masks(answer, [9]), num_starts=5, max_width=2
    )
    assert not none.is_answer.any()


def test_the_loss_of_pointing_is_added_for_each_example():
  joint, masks = _joint(), _masks([20, 21], [7, 8])
  # One block for each query.
  joint = JointRows(
    TokenRows(joint.rows.token_ids[[0, 3]], joint.rows.numbers[:2]),
    joint.body_start[:, :1],
    np.array([[5], [3]], np.int32),
  )
  targets = masked_spans(
    joint, masks, num_starts=tiny.BLOCK, max_width=tiny.WIDTH
  )
  batch = ReadingBatch(joint.rows, masks)
  plain, pointing = (
    jax.tree.map(jnp.asarray, padded(b))
    for b in (batch, batch._replace(spans=targets))
  )
  reader = tiny.models()[1]

  @jax.jit
  def run(params):
    _, spans = stage_losses.read_masks(reader, params["reader"], pointing, None)
    assert spans is not None
    return (
      stage_losses.reading(reader, params, plain, span_weight=0.5),
      stage_losses.reading(reader, params, pointing, span_weight=0.5),
      span_loss(spans.logits, spans.is_span, targets.is_answer),
    )

  without, both, alone = run(tiny.parameters("open_qa"))
  assert float(alone.loss.total) > 1
  assert float(both.loss.total) == pytest.approx(
    float(without.loss.total + 0.5 * alone.loss.total), rel=1e-5
  )
  assert both.loss.weight == without.loss.weight
  assert "span_accuracy" in both.metrics
  assert "span_accuracy" not in without.metrics


@pytest.mark.parametrize("stage", [Pretraining, Reading])
def test_the_widths_of_stage_and_reader(stage):
  models = Models(*tiny.models())
  stage().loss(models)
  stage(span_weight=1.0, max_answer_width=tiny.WIDTH).loss(models)
  with pytest.raises(ValueError, match=rf"=2, but {stage.__name__}.*=10; bind"):
    stage(span_weight=1.0).loss(models)
  assert not Pretraining(span_weight=1.0).retrieves_on_device


def test_pointing_does_not_train_the_retriever():
  made = tiny.batch("pretraining")
  queries, candidates = made.block_index.shape
  shape = (queries, candidates)
  is_answer = np.zeros((*shape, tiny.BLOCK, tiny.WIDTH), bool)
  is_answer[:, 1, 0, 0] = True
  length = np.full(shape, 2, np.int32)
  targets = SpanTargets(np.full(shape, 4, np.int32), length, is_answer)
  batch = jax.tree.map(jnp.asarray, made._replace(spans=targets))

  @jax.jit
  @jax.grad
  def gradient(params):
    """Returns the gradient of what pointing adds to the loss."""
    without, both = (
      stage_losses.pretraining(
        *tiny.models(), params, batch, span_weight=weight
      )
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
