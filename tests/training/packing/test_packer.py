"""A packed batch gives the loss and the gradients of the padded one."""

import jax
import numpy as np
import pytest
from flax import linen as nn

from realm_jax.partitioning import sharding
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.training.optimizer import OptimizerConfig, make_optimizer
from realm_jax.training.packing.packer import (
  Packer,
  largest_bucket,
  needed_bucket,
)
from tests.training import tiny

pytestmark = pytest.mark.slow

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


def _arrays(stage):
  # Short sequences: also those of half the batch share rows.
  arrays = tiny.arrays(stage, seed=15)
  if stage == "pretraining":
    # Two queries share candidates, as all share the null block.
    arrays["candidates"][1, 1:] = arrays["candidates"][0, 1:]
    arrays["candidates"][:, 0] = arrays["candidates"][0, 0]
  return arrays


def _loss_and_gradient(batch, mesh, params, loss):
  batch = sharding.to_devices(batch, mesh)

  def mean(params, batch, key):
    return loss(params, batch, key).loss.mean

  with jax.set_mesh(mesh), nn.logical_axis_rules(sharding.LOGICAL_AXIS_RULES):
    value, gradient = jax.jit(jax.value_and_grad(mean))(
      params, batch, jax.random.key(0)
    )
  return float(value), gradient


def _assert_packing_changes_nothing(stage, arrays, *, groups, loss, **settings):
  mesh = make_mesh(devices=jax.devices()[:groups])
  update = make_optimizer(OptimizerConfig(learning_rate=1e-3), num_steps=10)
  params = tiny.state(stage, update, mesh, **settings)[0].params
  batch = tiny.host_batch(stage, arrays, groups=groups, **settings)
  tight = needed_bucket(batch, groups=groups)
  largest = largest_bucket(batch, groups=groups)
  assert sum(tight) < sum(largest)
  packed = Packer([tight, largest], groups=groups)(batch)
  padded = Packer([largest], groups=groups, pack=False)(batch)
  value, gradient = _loss_and_gradient(packed, mesh, params, loss)
  plain, plain_gradient = _loss_and_gradient(padded, mesh, params, loss)
  assert value == pytest.approx(plain, rel=1e-5)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
    gradient,
    plain_gradient,
  )


@pytest.mark.parametrize("stage", _STAGES)
def test_loss_and_gradients_are_those_of_the_padded_batch(stage):
  # With dropout, whose masks do not depend on the rows.
  loss = tiny.loss(stage, dropout_rate=0.3)
  _assert_packing_changes_nothing(stage, _arrays(stage), groups=2, loss=loss)


def test_mean_pooling_and_prefixes_are_those_of_the_padded_batch():
  stage = "inverse_cloze"
  loss = tiny.loss(stage, **_MEAN)
  _assert_packing_changes_nothing(
    stage, _arrays(stage), groups=1, loss=loss, **_MEAN
  )


def test_a_block_of_several_queries_is_embedded_once():
  arrays = tiny.arrays("pretraining")
  arrays["candidates"][:] = arrays["candidates"][0, 0]
  packed = tiny.packed("pretraining", arrays)
  tokens = np.count_nonzero(arrays["candidates"][0, 0])
  assert np.count_nonzero(packed.blocks.token_ids) == tokens
  assert not packed.block_index.any()
  assert np.count_nonzero(packed.joint.token_ids) > tokens * tiny.BATCH


def test_a_batch_takes_the_smallest_bucket_that_holds_it():
  batch = tiny.host_batch("inverse_cloze", tiny.arrays("inverse_cloze"))
  tight, largest = needed_bucket(batch), largest_bucket(batch)
  too_small = (tight[0], tight[1] - 1)
  packer = Packer([too_small, tight, largest], groups=1)
  made = packer(batch)
  assert (len(made.queries.token_ids), len(made.blocks.token_ids)) == tight
  plans = packer.plan(batch)
  assert packer.smallest_bucket(plans) == 1
  # Another process may need more rows.
  made = packer.lay_out(batch, plans, bucket=2)
  assert (len(made.queries.token_ids), len(made.blocks.token_ids)) == largest
