"""Where the rules put parameters, batches and the run's own choices."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from realm_jax.models.bert import BertEncoder
from realm_jax.models.parameters import parameter_shardings
from realm_jax.models.sequences import padded
from realm_jax.partitioning import sharding
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.training.optimizer import OptimizerConfig, make_optimizer
from realm_jax.training.state import create_state
from tests.training import tiny


def test_a_batch_lies_over_data_and_fsdp():
  mesh = make_mesh(fsdp=2, model_parallelism=2)
  with pytest.raises(ValueError, match="BATCH_SIZE"):
    sharding.row_groups(mesh).local_rows(6)
  rows = np.arange(24, dtype=np.int32).reshape(8, 3)
  array = sharding.to_devices({"query": rows}, mesh)["query"]
  assert array.sharding.spec == PartitionSpec(("data", "fsdp"))
  assert {shard.data.shape for shard in array.addressable_shards} == {(2, 3)}
  np.testing.assert_array_equal(array, rows)


def test_own_rules_come_before_the_defaults():
  rules = sharding.with_defaults(
    [("vocab", None), ("embed", ["fsdp", "model"])]
  )
  assert rules == (
    ("vocab", None),
    ("embed", ("fsdp", "model")),
    *sharding.LOGICAL_AXIS_RULES,
  )
  mesh = make_mesh(fsdp=2, model_parallelism=2)
  bert = dataclasses.replace(tiny.components().reader.bert, num_layers=3)
  tokens = padded(np.ones((1, 3), np.int32))
  boxed = jax.eval_shape(BertEncoder(bert).init, jax.random.key(0), tokens)
  encoder = parameter_shardings(boxed, mesh, rules)["params"]
  both = ("fsdp", "model")
  assert encoder["word_embeddings"].spec == PartitionSpec(None, both)
  # The first rule takes an axis of the mesh from those behind it.
  up = encoder["last_layer"]["up"]["kernel"]
  assert up.spec == PartitionSpec(both, None)
  # Layers of a scan are not divided.
  up = encoder["layers"]["up"]["kernel"]
  assert up.spec == PartitionSpec(None, both, None)


@pytest.mark.slow
def test_sizes_that_devices_cannot_share_are_refused():
  mesh = make_mesh(devices=jax.devices()[:3], model_parallelism=3)
  named = r"40 along 'vocab'.* MODEL_PARALLELISM, or .*AXIS_"
  create = functools.partial(
    create_state,
    functools.partial(tiny.init, "inverse_cloze"),
    make_optimizer(OptimizerConfig(learning_rate=1.0), num_steps=10),
    tiny.components(),
    seed=0,
    mesh=mesh,
  )
  rules = [("heads", None), ("mlp", None)]
  with pytest.raises(ValueError, match=named):
    create(axis_rules=sharding.with_defaults(rules))
  rules += [("embed", None), ("vocab", None)]
  state = create(axis_rules=sharding.with_defaults(rules))
  assert all(leaf.is_fully_replicated for leaf in jax.tree.leaves(state))
