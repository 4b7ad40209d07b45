"""Where the rules put parameters, batches and the run's own choices."""

import functools

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from realm_jax.models.parameters import parameter_shardings
from realm_jax.partitioning import rules
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.training.optimizer import OptimizerConfig, make_optimizer
from realm_jax.training.state import create_state
from tests.training import tiny

OPTIMIZER = make_optimizer(OptimizerConfig(learning_rate=1.0), num_steps=10)


@pytest.fixture(scope="module")
def state():
  mesh = make_mesh(fsdp=2, model_parallelism=2)
  return tiny.state("pretraining", OPTIMIZER, mesh)[0]


@pytest.mark.parametrize(
  ("path", "axes"),
  [
    (("word_embeddings",), ("model", "fsdp")),
    (("position_embeddings",), (None, "fsdp")),
    (("layer_0", "attention", "query", "kernel"), ("fsdp", "model")),
    (("layer_0", "attention", "query", "bias"), ("model",)),
    (("layer_0", "attention", "output", "kernel"), ("model", "fsdp")),
    (("layer_0", "up", "kernel"), ("fsdp", "model")),
    (("layer_0", "down", "kernel"), ("model", "fsdp")),
    (("layer_0", "down", "bias"), (None,)),
    (("layer_0", "output_norm", "scale"), (None,)),
  ],
)
def test_widths_lie_over_model_and_hidden_sizes_over_fsdp(state, path, axes):
  mean = state.optimizer[1].mean
  for tree in (
    state.params["retriever"]["query_tower"]["encoder"],
    state.params["reader"]["encoder"],
    # The optimizer's moments lie where their parameters do.
    mean["reader"]["encoder"],
  ):
    leaf = functools.reduce(lambda node, name: node[name], path, tree)
    spec = tuple(leaf.sharding.spec)
    assert spec + (None,) * (leaf.ndim - len(spec)) == axes


def test_every_axis_of_every_parameter_has_a_rule():
  named = {name for name, _ in rules.LOGICAL_AXIS_RULES}
  boxed = jax.eval_shape(
    functools.partial(tiny.init, "pretraining"), jax.random.key(0)
  )
  boxes = jax.tree.leaves(boxed, is_leaf=lambda leaf: hasattr(leaf, "names"))
  used = {name for box in boxes for name in getattr(box, "names", ()) if name}
  assert used
  assert used <= named


def test_initial_values_do_not_depend_on_the_layout():
  alone, state = (
    create_state(
      functools.partial(tiny.init, "inverse_cloze"),
      OPTIMIZER,
      seed=0,
      mesh=mesh,
    )
    for mesh in (
      make_mesh(devices=jax.devices()[:1]),
      make_mesh(fsdp=4, model_parallelism=2),
    )
  )
  assert int(state.step) == 0
  table = state.params["retriever"]["query_tower"]["encoder"]["word_embeddings"]
  assert table.addressable_shards[0].data.shape == (tiny.VOCABULARY // 2, 2)
  jax.tree.map(
    np.testing.assert_array_equal,
    jax.device_get(alone.params),
    jax.device_get(state.params),
  )


def test_a_batch_lies_over_data_and_fsdp():
  mesh = make_mesh(fsdp=2, model_parallelism=2)
  rows = np.arange(24, dtype=np.int32).reshape(8, 3)
  array = rules.to_devices({"query": rows}, mesh)["query"]
  assert array.sharding.spec == PartitionSpec(("data", "fsdp"))
  assert {shard.data.shape for shard in array.addressable_shards} == {(2, 3)}
  np.testing.assert_array_equal(array, rows)


def test_own_rules_come_before_the_defaults():
  own = rules.with_defaults([("vocab", None), ("embed", ["fsdp", "model"])])
  assert own == (
    ("vocab", None),
    ("embed", ("fsdp", "model")),
    *rules.LOGICAL_AXIS_RULES,
  )
  mesh = make_mesh(fsdp=2, model_parallelism=2)
  shapes = jax.eval_shape(
    functools.partial(tiny.init, "inverse_cloze"), jax.random.key(0)
  )
  encoder = parameter_shardings(shapes, mesh, own)["retriever"]["query_tower"][
    "encoder"
  ]
  both = ("fsdp", "model")
  assert encoder["word_embeddings"].spec == PartitionSpec(None, both)
  # The first rule takes an axis of the mesh from those behind it.
  up = encoder["layer_0"]["up"]["kernel"]
  assert up.spec == PartitionSpec(both, None)


def _create(mesh, **settings):
  init = functools.partial(tiny.init, "inverse_cloze")
  return create_state(init, OPTIMIZER, seed=0, mesh=mesh, **settings)


def test_sizes_that_devices_cannot_share_are_refused_or_not_divided():
  mesh = make_mesh(devices=jax.devices()[:3], model_parallelism=3)
  whole = [("heads", None), ("mlp", None)]
  with pytest.raises(
    ValueError,
    match=r"word_embeddings.* has 40 along 'vocab', which cannot be divided "
    r"over the 3 devices of model; change MODEL_PARALLELISM, or .*"
    r"--gin.AXIS_RULES='\[\(\"vocab\", None\)\]'",
  ):
    _create(mesh, axis_rules=rules.with_defaults(whole))
  mesh = make_mesh(devices=jax.devices()[:3], fsdp=3)
  with pytest.raises(ValueError, match=r"has 8 along 'embed'.*change FSDP"):
    _create(mesh)
  unshared = rules.with_defaults([("embed", None)])
  state = _create(mesh, axis_rules=unshared)
  assert all(leaf.is_fully_replicated for leaf in jax.tree.leaves(state))
