"""The jitted step: layouts, dropout, compilation, and who is updated."""

import dataclasses
import functools
import math

import jax
import numpy as np
import pytest
from flax import linen as nn

from realm_jax.partitioning import sharding
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.training.optimizer import OptimizerConfig, make_optimizer
from realm_jax.training.step import train_step
from tests.training import tiny

OPTIMIZER = OptimizerConfig(learning_rate=1e-3, warmup_steps=0)
# The clip is over both components' gradients, and decay moves all that there
# is; without them a parameter moves by its own gradient alone.
PLAIN = dataclasses.replace(OPTIMIZER, clip_norm=1e6, weight_decay=0.0)
# Adam divides a gradient by its own size, also one that consists of rounding
# errors, which differ between processors. This epsilon is far above such
# gradients and far below the others.
STEADY = dataclasses.replace(OPTIMIZER, epsilon=1e-4)
# Sizes of the axes `data`, `fsdp` and `model`.
ONE = (1, 1, 1)
ALL_AXES = (2, 2, 2)


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
def _prepare(
  stage,
  layout=ONE,
  *,
  dropout_rate=0.1,
  optimizer=PLAIN,
  seed=0,
  freeze=False,
  pack=False,
):
  """A state, the compiled step of a stage as the loop makes it, the mesh."""
  state, shardings, update, mesh = _state(stage, layout, optimizer)
  step = jax.jit(
    functools.partial(
      train_step,
      **tiny.functions(stage, dropout_rate=dropout_rate),
      layout=tiny.layout(stage, mesh, pack=pack),
      optimizer=update,
      seed=seed,
      freeze_retriever=freeze,
    ),
    out_shardings=(shardings, sharding.replicated(mesh)),
  )
  batch = _batch(stage, mesh)
  with jax.set_mesh(mesh), nn.logical_axis_rules(sharding.LOGICAL_AXIS_RULES):
    compiled = step.lower(state, batch).compile()
  return state, compiled, mesh


def _batch(stage, mesh, *, seed=0):
  return sharding.to_devices(tiny.batch(stage, seed), mesh)


def _first_step(stage, layout=ONE, *, optimizer=PLAIN, **settings):
  state, step, mesh = _prepare(stage, layout, optimizer=optimizer, **settings)
  return step(state, _batch(stage, mesh))


def _curve(layout, *, pack=True, num_steps=10):
  """The losses of inverse cloze, and how far they moved the parameters."""
  stage = "inverse_cloze"
  start, step, mesh = _prepare(stage, layout, optimizer=STEADY, pack=pack)
  state, losses = start, []
  for number in range(num_steps):
    batch = _batch(stage, mesh, seed=number)
    state, metrics = step(state, batch)
    losses.append(float(metrics["loss"]))
  moves = jax.tree.map(
    lambda after, before: np.asarray(after) - np.asarray(before),
    state.params,
    start.params,
  )
  return np.array(losses), moves


# A softmax cancels these, so that their gradients are rounding errors.
_CANCELLED = (
  "key/bias",
  "span_head/norm/bias",
  "score/bias",
  "block_tower/projection_norm/bias",
)


# tests/integration/test_stages.py compares the losses of all stages. One device
# packs, and its masks are those of padded rows.
@pytest.mark.slow
def test_the_same_curve_on_one_device_and_on_eight():
  one, one_moves = _curve(ONE)
  many, many_moves = _curve(ALL_AXES, pack=False)
  assert np.ptp(one) > 0.01
  np.testing.assert_allclose(many, one, rtol=1e-5)

  def assert_close(path, many, one):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    allowed = 1e-6 if name.endswith(_CANCELLED) else 1e-4 * np.linalg.norm(one)
    assert np.linalg.norm(many - one) <= allowed, name

  jax.tree_util.tree_map_with_path(assert_close, many_moves, one_moves)


@pytest.mark.slow
def test_fsdp_leaves_each_device_an_eighth_of_parameters_and_moments():
  state, *_ = _state("inverse_cloze", (1, 8, 1), PLAIN)
  moments = state.optimizer[1]
  for part in (state.params, moments.mu, moments.nu):
    matrices = [leaf for leaf in jax.tree.leaves(part) if leaf.size >= 64]
    assert len(matrices) > 10
    for leaf in matrices:
      assert {8 * shard.data.size for shard in leaf.addressable_shards} == {
        leaf.size
      }


def _assert_trees_close(one, two, **tolerance):
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, **tolerance), one, two
  )


@pytest.mark.slow
def test_a_frozen_retriever_does_not_change_and_the_reader_learns_alike():
  frozen = dataclasses.replace(PLAIN, freeze_retriever_steps=1)
  start, *_ = _state("pretraining", ONE, PLAIN)
  moved, moved_metrics = _first_step("pretraining")
  still, still_metrics = _first_step(
    "pretraining", optimizer=frozen, freeze=True
  )
  _assert_trees_close(
    still.params["retriever"], start.params["retriever"], rtol=0
  )
  _assert_trees_close(still.params["reader"], moved.params["reader"], atol=1e-5)
  assert float(still_metrics["loss"]) == pytest.approx(
    float(moved_metrics["loss"]), rel=1e-6
  )


def _largest_move(tree, before):
  return max(
    jax.tree.leaves(
      jax.tree.map(lambda a, b: float(np.abs(a - b).max()), tree, before)
    )
  )


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


def test_a_scale_makes_scores_of_an_index_without_vectors():
  # With a scale of 0 all blocks score alike, and doubling scores while halving
  # the scale changes nothing.
  batch = tiny.batch("open_qa")
  scores = np.random.default_rng(0).normal(size=(tiny.BATCH, tiny.SEARCHED))
  params = _state("open_qa", ONE, PLAIN)[0].params
  stage = dataclasses.replace(tiny.OF_STAGE["open_qa"], index_scores=True)
  loss = jax.jit(functools.partial(tiny.weighted, "open_qa", of=stage))

  def value(scale, scores):
    return loss(
      {**params, "retriever": {"scale": np.float32(scale)}},
      batch._replace(retrieved=scores.astype(np.float32)),
    ).means()

  np.testing.assert_allclose(
    value(0.5, scores)["loss"], value(0.25, 2 * scores)["loss"], rtol=1e-6
  )
  share = [row.mean() for row in batch.has_answer if row.any()]
  np.testing.assert_allclose(
    value(0.0, scores)["retriever_loss"],
    -np.sum(np.log(share)) / tiny.BATCH,
    rtol=1e-5,
  )
