"""Gradients of a batch's parts, added up, against that of the whole batch."""

import functools

import jax
import numpy as np
import pytest
from flax import linen as nn

from realm_jax.partitioning import sharding
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.training.optimizer import OptimizerConfig, make_optimizer
from realm_jax.training.step import train_step
from tests.training import tiny

pytestmark = pytest.mark.slow

_OPTIMIZER = OptimizerConfig(learning_rate=1e-3, warmup_steps=0)


def test_parts_have_the_gradient_of_the_whole():
  stage = "pretraining"
  mesh = make_mesh(fsdp=2, devices=jax.devices()[:4])
  update = make_optimizer(_OPTIMIZER, num_steps=100)
  state, shardings = tiny.state(stage, update, mesh)

  def after_a_step(count):
    batch = tiny.batch(stage)
    step = jax.jit(
      functools.partial(
        train_step,
        **tiny.functions(stage, dropout_rate=0.1),
        layout=tiny.layout(stage, mesh, pack=True),
        optimizer=update,
        seed=0,
        num_microbatches=count,
      ),
      out_shardings=(shardings, sharding.replicated(mesh)),
    )
    with jax.set_mesh(mesh), nn.logical_axis_rules(sharding.LOGICAL_AXIS_RULES):
      return step(state, sharding.to_devices(batch, mesh))

  whole, metrics = after_a_step(1)
  parts, metrics_of_parts = after_a_step(2)
  for name, value in metrics.items():
    # The utility is a small difference of two likelihoods of several nats.
    np.testing.assert_allclose(
      metrics_of_parts[name], value, rtol=1e-5, atol=1e-6, err_msg=name
    )
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6),
    whole.optimizer[1].mu,
    parts.optimizer[1].mu,
  )
