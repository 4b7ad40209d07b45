"""The jitted step: who is updated, and what each device holds."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from flax import linen as nn
from flax import traverse_util

from realm_jax.partitioning import sharding
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.training.optimizer import OptimizerConfig, make_optimizer
from tests.models.test_lora import LORA
from tests.training import tiny

# The clip is over both components' gradients, and decay moves all that there
# is; without them a parameter moves by its own gradient alone.
OPTIMIZER = make_optimizer(
  OptimizerConfig(
    learning_rate=1e-3, warmup_steps=0, clip_norm=1e6, weight_decay=0.0
  ),
  num_steps=100,
  components=("retriever", "reader", "reranker"),
)


def _state(stage, num_devices):
  mesh = make_mesh(devices=jax.devices()[:num_devices])
  return *tiny.state(stage, OPTIMIZER, mesh), mesh


def _towers(state):
  return {**state.params["retriever"], "reader": state.params["reader"]}


@pytest.mark.slow
@pytest.mark.parametrize(
  ("stage", "freeze", "learns"),
  [
    ("pretraining", False, {"query_tower", "block_tower", "reader"}),
    ("pretraining", True, {"reader"}),
    # The block vectors of open QA are the snapshot's own.
    ("open_qa", False, {"query_tower", "reader"}),
  ],
)
def test_what_each_stage_teaches(stage, freeze, learns):
  start, shardings, mesh = _state(stage, 1)
  step = jax.jit(
    tiny.step(
      stage,
      mesh,
      dropout_rate=0.1,
      optimizer=OPTIMIZER,
      frozen=("retriever",) if freeze else (),
    ),
    out_shardings=(shardings, sharding.replicated(mesh)),
  )
  batch = sharding.to_devices(tiny.batch(stage), mesh)
  with jax.set_mesh(mesh), nn.logical_axis_rules(sharding.LOGICAL_AXIS_RULES):
    end, metrics = step(start, batch)
  assert float(metrics["gradient_norm"]) > 0
  moved = jax.tree.map(
    lambda a, b: float(np.abs(a - b).max()), _towers(end), _towers(start)
  )
  largest = {name: max(jax.tree.leaves(tower)) for name, tower in moved.items()}
  assert {name for name, most in largest.items() if most > 1e-4} == learns
  if freeze:
    assert largest["query_tower"] == largest["block_tower"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["contrastive", "distilled", "reranking"])
def test_parts_that_are_compared_have_the_gradient_of_the_whole_batch(stage):
  # The examples of a part are dealt out to two devices, half of the hidden
  # states are dropped, and each query has negatives.
  state, _, mesh = _state(stage, 2)
  batch = sharding.to_devices(tiny.batch(stage), mesh)
  whole, in_parts = (
    jax.jit(
      tiny.step(stage, mesh, dropout_rate=0.5, num_microbatches=parts).gradient
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


@pytest.mark.slow
def test_lora_trains_adapters_alone():
  mesh, ends = make_mesh(fsdp=4, model_parallelism=2), []
  start = tiny.adapted_state(LORA, OPTIMIZER, mesh, seed=0)
  # Where B is 0, A has no gradient.
  start = start._replace(params=jax.tree.map(lambda x: x + 0.1, start.params))
  batch = sharding.to_devices(tiny.batch("contrastive"), mesh)
  of_run = {"dropout_rate": 0.0, "optimizer": OPTIMIZER}
  for parts in (1, 2):
    step = tiny.step("contrastive", mesh, num_microbatches=parts, **of_run)
    step = dataclasses.replace(step, components=tiny.adapted(LORA))
    with jax.set_mesh(mesh), nn.logical_axis_rules(sharding.LOGICAL_AXIS_RULES):
      ends.append(jax.jit(step)(start, batch)[0])
  close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
  jax.tree.map(close, ends[0].optimizer, ends[1].optimizer)
  before, after, moments = (
    traverse_util.flatten_dict(tree, sep="/")
    for tree in (start.params, ends[0].params, ends[0].optimizer[1].mu)
  )
  named = ("lora_a", "lora_b", "projection/kernel", "projection/bias")
  moved = {p for p, x in before.items() if not np.array_equal(x, after[p])}
  assert moved == moments.keys() == {p for p in before if p.endswith(named)}


@pytest.mark.parametrize("field", ["target_modules", "modules_to_save"])
def test_lora_refuses_names_of_nothing(field):
  lora = dataclasses.replace(LORA, **{field: ["qery"]})
  with pytest.raises(ValueError, match=r"qery, and the retriever has .* query"):
    tiny.adapted_state(lora, OPTIMIZER, make_mesh())
