"""A packed batch gives the loss and the gradients of the padded one."""

import jax
import numpy as np
import pytest

from realm_jax.models.sequences import Sequences
from realm_jax.partitioning import rules
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.training import stages
from realm_jax.training.optimizer import OptimizerConfig, make_optimizer
from realm_jax.training.packing import BatchPacker
from realm_jax.training.rooms import (
  choose_rooms,
  in_room,
  largest_room,
  needed_room,
  room_of,
)
from realm_jax.training.step_texts import StepTexts
from tests.generations.conftest import make_corpus
from tests.training import tiny

STAGES = {
  "inverse_cloze": stages.InverseCloze(),
  "pretraining": stages.Pretraining(num_candidates=tiny.CANDIDATES),
  "open_qa": stages.OpenQa(num_read=tiny.CANDIDATES),
}


def _texts(stage, *, groups=1):
  retriever, reader = tiny.models()
  return StepTexts(
    STAGES[stage].parts, retriever=retriever, reader=reader, groups=groups
  )


def _loss_and_gradient(stage, batch, mesh, params, dropout_rate=0.0):
  loss = tiny.loss(stage, dropout_rate=dropout_rate)
  batch = rules.to_devices(batch, mesh)
  with rules.in_effect(mesh):
    step = jax.jit(
      jax.value_and_grad(loss, has_aux=True), compiler_options=tiny.QUICK
    )
    (value, _), gradient = step(params, batch, jax.random.key(0))
  return float(value), gradient


@pytest.mark.parametrize(
  ("stage", "devices"),
  [
    ("inverse_cloze", 1),
    ("inverse_cloze", 8),
    *(
      pytest.param(stage, devices, marks=pytest.mark.slow)
      for stage in ("pretraining", "open_qa")
      for devices in (1, 4)
    ),
  ],
)
def test_loss_and_gradients_are_those_of_the_padded_batch(stage, devices):
  mesh = make_mesh(devices=jax.devices()[:devices])
  update = make_optimizer(OptimizerConfig(learning_rate=1e-3), num_steps=10)
  params = tiny.state(stage, update, mesh)[0].params
  batch = tiny.batch(stage)
  if stage == "pretraining":
    # Two queries share candidates, as all share the null block.
    batch["candidates"][1, 1:] = batch["candidates"][0, 1:]
    batch["candidates"][:, 0] = batch["candidates"][0, 0]
  texts = _texts(stage, groups=devices)
  tight = needed_room(texts, batch)
  most = largest_room(texts, batch)
  assert sum(tight.values()) < sum(most.values()) or devices > 1
  packed = BatchPacker(texts, [tight, most])(batch)
  value, gradient = _loss_and_gradient(stage, packed, mesh, params)
  plain, plain_gradient = _loss_and_gradient(stage, batch, mesh, params)
  assert value == pytest.approx(plain, rel=1e-5)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
    gradient,
    plain_gradient,
  )


def test_dropout_is_that_of_the_padded_batch():
  mesh = make_mesh(devices=jax.devices()[:1])
  update = make_optimizer(OptimizerConfig(learning_rate=1e-3), num_steps=10)
  params = tiny.state("inverse_cloze", update, mesh)[0].params
  batch = tiny.batch("inverse_cloze")
  texts = _texts("inverse_cloze")
  packer = BatchPacker(texts, [needed_room(texts, batch)])
  packed, _ = _loss_and_gradient(
    "inverse_cloze", packer(batch), mesh, params, 0.3
  )
  plain, _ = _loss_and_gradient("inverse_cloze", batch, mesh, params, 0.3)
  assert packed == pytest.approx(plain, rel=1e-5)


def test_a_block_of_several_queries_is_embedded_once():
  batch = tiny.batch("pretraining")
  batch["candidates"][:] = batch["candidates"][0, 0]
  texts = _texts("pretraining")
  packed = BatchPacker(texts, [largest_room(texts, batch)])(batch)
  tokens = np.count_nonzero(batch["candidates"][0, 0])
  assert np.count_nonzero(packed["blocks"].token_ids) == tokens
  assert not packed["block_index"].any()
  assert np.count_nonzero(packed["joint"].token_ids) > tokens * tiny.BATCH


def test_a_batch_takes_the_smallest_room_that_holds_it():
  batch = tiny.batch("inverse_cloze")
  texts = _texts("inverse_cloze")
  most, tight = largest_room(texts, batch), needed_room(texts, batch)
  too_small = {**tight, "blocks": tight["blocks"] - 1}
  packer = BatchPacker(texts, [too_small, tight, most])
  assert room_of(packer(batch)) == (tight["blocks"], tight["queries"])
  packer = BatchPacker(texts, [too_small, most])
  assert room_of(packer(batch)) == (most["blocks"], most["queries"])


def test_a_batch_in_another_room_has_other_rows_alone():
  texts, batch = _texts("inverse_cloze"), tiny.batch("inverse_cloze")
  packer = BatchPacker(texts, [largest_room(texts, batch)])
  mesh = make_mesh(devices=jax.devices()[:1])
  batch = rules.to_devices(packer(batch), mesh)
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
  stage = STAGES["inverse_cloze"]
  texts = _texts("inverse_cloze", groups=2)
  block_length = 4 * int(corpus.lengths.mean())
  shapes = stage.text_shapes(16, 12, block_length)
  rooms = choose_rooms(texts, shapes, corpus=corpus)
  assert rooms == choose_rooms(texts, shapes, corpus=corpus)
  usual, most = rooms
  assert most == {"queries": 8, "blocks": 8}
  assert usual["blocks"] < 8
