"""A packed batch gives the loss and the gradients of the padded one."""

import jax
import numpy as np
import pytest

from realm_jax.models.sequences import Sequences
from realm_jax.partitioning import rules
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.training.optimizer import OptimizerConfig, make_optimizer
from realm_jax.training.packing import BatchPacker
from realm_jax.training.rooms import (
  choose_rooms,
  in_room,
  largest_room,
  needed_room,
  room_of,
)
from tests.generations.conftest import make_corpus
from tests.training import tiny

_STAGES = [
  "inverse_cloze",
  *(pytest.param(s, marks=pytest.mark.slow) for s in tiny.STAGES[1:]),
]
# As sentence-transformers' retrievers read, and E5's.
_MEAN = {
  "pooling": "mean",
  "query_prefix": (7, 8),
  "block_prefix": (9,),
  "title_separator": False,
  "token_types": False,
  "projection_size": None,
  "normalize": True,
}


def _batch(stage):
  # Short texts: also those of half the batch share rows.
  batch = tiny.batch(stage, seed=15)
  if stage == "pretraining":
    # Two queries share candidates, as all share the null block.
    batch["candidates"][1, 1:] = batch["candidates"][0, 1:]
    batch["candidates"][:, 0] = batch["candidates"][0, 0]
  return batch


def _loss_and_gradient(batch, mesh, params, loss):
  batch = rules.to_devices(batch, mesh)

  def mean_loss(*args):
    return loss(*args).loss.mean

  with rules.in_effect(mesh):
    step = jax.jit(jax.value_and_grad(mean_loss))
    value, gradient = step(params, batch, jax.random.key(0))
  return float(value), gradient


def _assert_packing_changes_nothing(stage, batch, *, groups, loss, **settings):
  mesh = make_mesh(devices=jax.devices()[:groups])
  update = make_optimizer(OptimizerConfig(learning_rate=1e-3), num_steps=10)
  params = tiny.state(stage, update, mesh, **settings)[0].params
  texts = tiny.texts(stage, groups=groups, **settings)
  tight, most = needed_room(texts, batch), largest_room(texts, batch)
  assert sum(tight.values()) < sum(most.values())
  packed = BatchPacker(texts, [tight, most])(batch)
  value, gradient = _loss_and_gradient(packed, mesh, params, loss)
  plain, plain_gradient = _loss_and_gradient(batch, mesh, params, loss)
  assert value == pytest.approx(plain, rel=1e-5)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
    gradient,
    plain_gradient,
  )


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("stage", _STAGES)
def test_loss_and_gradients_are_those_of_the_padded_batch(stage, devices):
  _assert_packing_changes_nothing(
    stage, _batch(stage), groups=devices, loss=tiny.loss(stage)
  )


@pytest.mark.parametrize("stage", _STAGES[:2])
def test_mean_pooling_and_prefixes_are_those_of_the_padded_batch(stage):
  _assert_packing_changes_nothing(
    stage, _batch(stage), groups=1, loss=tiny.loss(stage, **_MEAN), **_MEAN
  )


def test_dropout_is_that_of_the_padded_batch():
  _assert_packing_changes_nothing(
    "inverse_cloze",
    tiny.batch("inverse_cloze"),
    groups=1,
    loss=tiny.loss("inverse_cloze", dropout_rate=0.3),
  )


def test_a_block_of_several_queries_is_embedded_once():
  batch = tiny.batch("pretraining")
  batch["candidates"][:] = batch["candidates"][0, 0]
  packed = tiny.packed("pretraining", batch)
  tokens = np.count_nonzero(batch["candidates"][0, 0])
  assert np.count_nonzero(packed["blocks"].token_ids) == tokens
  assert not packed["block_index"].any()
  assert np.count_nonzero(packed["joint"].token_ids) > tokens * tiny.BATCH


def test_a_batch_takes_the_smallest_room_that_holds_it():
  batch = tiny.batch("inverse_cloze")
  texts = tiny.texts("inverse_cloze")
  most, tight = largest_room(texts, batch), needed_room(texts, batch)
  too_small = {**tight, "blocks": tight["blocks"] - 1}
  packer = BatchPacker(texts, [too_small, tight, most])
  assert room_of(packer(batch)) == (tight["blocks"], tight["queries"])
  packer = BatchPacker(texts, [too_small, most])
  assert room_of(packer(batch)) == (most["blocks"], most["queries"])


def test_a_batch_in_another_room_has_other_rows_alone():
  mesh = make_mesh(devices=jax.devices()[:1])
  batch = tiny.packed("inverse_cloze", tiny.batch("inverse_cloze"))
  batch = rules.to_devices(batch, mesh)
  abstract = in_room(batch, {"queries": 3, "blocks": 5})
  assert room_of(abstract) == (5, 3)
  for name, value in batch.items():
    if isinstance(value, Sequences):
      assert abstract[name].starts.shape == value.starts.shape
    else:
      assert abstract[name].shape == value.shape


def test_rooms_follow_from_the_corpus(tmp_path):
  # A quarter of a block's room is used.
  corpus = make_corpus(tmp_path, num_blocks=40)
  stage = tiny.OF_STAGE["inverse_cloze"]
  texts = tiny.texts("inverse_cloze", groups=2)
  block_length = 4 * int(corpus.lengths.mean())
  shapes = stage.text_shapes(16, 12, block_length)
  rooms = choose_rooms(texts, shapes, corpus=corpus)
  assert rooms == choose_rooms(texts, shapes, corpus=corpus)
  usual, most = rooms
  assert most == {"queries": 8, "blocks": 8}
  assert usual["blocks"] < 8
