"""The mesh, and where the rules put parameters."""

import functools

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from realm_jax.partitioning import rules
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.training.optimizer import OptimizerConfig, make_optimizer
from realm_jax.training.state import create_state
from tests.training import tiny


@pytest.mark.parametrize(
  ("model_parallelism", "shape"),
  [(1, (8, 1, 1)), (2, (4, 1, 2)), (8, (1, 1, 8))],
)
def test_the_mesh_has_all_devices(model_parallelism, shape):
  mesh = make_mesh(model_parallelism=model_parallelism)
  assert mesh.axis_names == ("data", "fsdp", "model")
  assert mesh.devices.shape == shape
  assert len({device.id for device in mesh.devices.flat}) == 8


@pytest.mark.parametrize("model_parallelism", [3, 0, 16])
def test_a_parallelism_that_does_not_divide_is_refused(model_parallelism):
  with pytest.raises(ValueError, match=r"do not divide the 8 devices"):
    make_mesh(model_parallelism=model_parallelism)


OPTIMIZER = make_optimizer(OptimizerConfig(learning_rate=1.0), num_steps=10)


@pytest.fixture(scope="module")
def state():
  mesh = make_mesh(model_parallelism=2)
  return tiny.state("pretraining", OPTIMIZER, mesh)[0]


@pytest.mark.parametrize(
  ("path", "axes"),
  [
    (("word_embeddings",), ("model", None)),
    (("position_embeddings",), (None, None)),
    (("layer_0", "attention", "query", "kernel"), (None, "model")),
    (("layer_0", "attention", "query", "bias"), ("model",)),
    (("layer_0", "attention", "output", "kernel"), ("model", None)),
    (("layer_0", "up", "kernel"), (None, "model")),
    (("layer_0", "down", "kernel"), ("model", None)),
    (("layer_0", "down", "bias"), (None,)),
    (("layer_0", "output_norm", "scale"), (None,)),
  ],
)
def test_widths_lie_over_the_model_axis(state, path, axes):
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
      make_mesh(model_parallelism=2),
    )
  )
  assert int(state.step) == 0
  table = state.params["retriever"]["query_tower"]["encoder"]["word_embeddings"]
  assert table.addressable_shards[0].data.shape == (tiny.VOCABULARY // 2, 8)
  jax.tree.map(
    np.testing.assert_array_equal,
    jax.device_get(alone.params),
    jax.device_get(state.params),
  )


def test_a_batch_lies_over_the_data_axis():
  mesh = make_mesh(model_parallelism=2)
  rows = np.arange(24, dtype=np.int32).reshape(8, 3)
  array = rules.to_devices({"query": rows}, mesh)["query"]
  assert array.sharding.spec == PartitionSpec(("data", "fsdp"))
  assert {shard.data.shape for shard in array.addressable_shards} == {(2, 3)}
  np.testing.assert_array_equal(array, rows)
