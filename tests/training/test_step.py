"""The jitted step: who is updated, and what each device holds."""

import dataclasses
import functools
import math

import jax
import numpy as np
import pytest
from flax import linen as nn

from realm_jax.partitioning import sharding
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.training.encoder_rows import RowLayout
from realm_jax.training.optimizer import OptimizerConfig, make_optimizer
from realm_jax.training.step import batch_gradient, train_step
from tests.training import tiny

OPTIMIZER = OptimizerConfig(learning_rate=1e-3, warmup_steps=0)
# The clip is over both components' gradients, and decay moves all that there
# is; without them a parameter moves by its own gradient alone.
PLAIN = dataclasses.replace(OPTIMIZER, clip_norm=1e6, weight_decay=0.0)
# Sizes of the axes `data`, `fsdp` and `model`.
ONE = (1, 1, 1)


@functools.cache
def _state(stage, layout, optimizer):
  _, fsdp, model_parallelism = layout
  mesh = make_mesh(
    fsdp=fsdp,
    model_parallelism=model_parallelism,
    devices=jax.devices()[: math.prod(layout)],
  )
  update = make_optimizer(optimizer, num_steps=100)
  state, shardings = tiny.state(stage, update, mesh)
  return state, shardings, update, mesh


@functools.cache
def _first_step(stage, *, optimizer=PLAIN, freeze=False):
  """The state after a step on one device, and its metrics."""
  state, shardings, update, mesh = _state(stage, ONE, optimizer)
  step = jax.jit(
    functools.partial(
      train_step,
      **tiny.functions(stage, dropout_rate=0.1),
      layout=RowLayout(mesh),
      optimizer=update,
      seed=0,
      freeze_retriever=freeze,
    ),
    out_shardings=(shardings, sharding.replicated(mesh)),
  )
  batch = sharding.to_devices(tiny.batch(stage), mesh)
  with jax.set_mesh(mesh), nn.logical_axis_rules(sharding.LOGICAL_AXIS_RULES):
    return step(state, batch)


@pytest.mark.slow
def test_a_frozen_retriever_does_not_change_and_the_reader_learns_alike():
  frozen = dataclasses.replace(PLAIN, freeze_retriever_steps=1)
  start, *_ = _state("pretraining", ONE, PLAIN)
  moved, moved_metrics = _first_step("pretraining")
  still, still_metrics = _first_step(
    "pretraining", optimizer=frozen, freeze=True
  )
  assert (
    _largest_move(still.params["retriever"], start.params["retriever"]) == 0
  )
  assert _largest_move(still.params["reader"], moved.params["reader"]) < 1e-5
  assert float(still_metrics["loss"]) == pytest.approx(
    float(moved_metrics["loss"]), rel=1e-6
  )


def _largest_move(tree, before):
  return max(
    jax.tree.leaves(
      jax.tree.map(lambda a, b: float(np.abs(a - b).max()), tree, before)
    )
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  ("stage", "learns"),
  [
    ("pretraining", {"query_tower", "block_tower", "reader"}),
    # The block vectors of open QA are the generation's own.
    ("open_qa", {"query_tower", "reader"}),
  ],
)
def test_what_each_stage_teaches(stage, learns):
  start, *_ = _state(stage, ONE, PLAIN)
  end, metrics = _first_step(stage)
  assert float(metrics["gradient_norm"]) > 0
  for name in ("query_tower", "block_tower", "reader"):
    before, after = (
      {**state.params["retriever"], "reader": state.params["reader"]}[name]
      for state in (start, end)
    )
    assert (_largest_move(after, before) > 1e-4) == (name in learns), name


@pytest.mark.slow
def test_parts_that_are_compared_have_the_gradient_of_the_whole_batch():
  # The examples of a part are dealt out to two devices, half of the hidden
  # states are dropped, and each sentence has a hard negative.
  state, _, _, mesh = _state("inverse_cloze", (2, 1, 1), PLAIN)
  batch = tiny.batch("inverse_cloze")
  negatives = np.roll(batch.blocks, 1, axis=0)
  blocks = np.concatenate([batch.blocks, negatives], axis=1)
  batch = sharding.to_devices(batch._replace(blocks=blocks), mesh)
  whole, in_parts = (
    jax.jit(
      functools.partial(
        batch_gradient,
        **tiny.functions("inverse_cloze", dropout_rate=0.5),
        layout=RowLayout(mesh),
        seed=0,
        num_microbatches=parts,
      )
    )
    for parts in (1, 4)
  )
  with jax.set_mesh(mesh), nn.logical_axis_rules(sharding.LOGICAL_AXIS_RULES):
    (gradient, metrics), (added, of_parts) = (
      whole(state, batch),
      in_parts(state, batch),
    )
  assert float(metrics["loss"]) > 0.1
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5),
    (added, of_parts),
    (gradient, metrics),
  )
  assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(gradient)) > 0.01
