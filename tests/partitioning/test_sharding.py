"""Where the rules put parameters, batches and the run's own choices."""

import functools

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from realm_jax.models.bert import BertConfig
from realm_jax.models.parameters import parameter_shardings
from realm_jax.partitioning import sharding
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.training.optimizer import OptimizerConfig, make_optimizer
from realm_jax.training.step import create_state
from tests.training import tiny

_traced = []
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
  mean = state.optimizer[1].mu
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
  named = {name for name, _ in sharding.LOGICAL_AXIS_RULES}
  boxed = jax.eval_shape(
    functools.partial(tiny.init, "pretraining"), jax.random.key(0)
  )
  boxes = jax.tree.leaves(boxed, is_leaf=lambda leaf: hasattr(leaf, "names"))
  used = {name for box in boxes for name in getattr(box, "names", ()) if name}
  assert used
  assert used <= named


def test_a_batch_lies_over_data_and_fsdp():
  mesh = make_mesh(fsdp=2, model_parallelism=2)
  rows = np.arange(24, dtype=np.int32).reshape(8, 3)
  array = sharding.to_devices({"query": rows}, mesh)["query"]
  assert array.sharding.spec == PartitionSpec(("data", "fsdp"))
  assert {shard.data.shape for shard in array.addressable_shards} == {(2, 3)}
  np.testing.assert_array_equal(array, rows)


def test_rows_that_devices_cannot_share_name_the_setting():
  groups = sharding.row_groups(make_mesh(fsdp=2, model_parallelism=2))
  assert groups.own_rows(8).tolist() == list(range(8))
  with pytest.raises(ValueError, match="BATCH_SIZE"):
    groups.own_rows(6)


def test_own_rules_come_before_the_defaults():
  own = sharding.with_defaults([("vocab", None), ("embed", ["fsdp", "model"])])
  assert own == (
    ("vocab", None),
    ("embed", ("fsdp", "model")),
    *sharding.LOGICAL_AXIS_RULES,
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


def _scaled(config, values):
  _traced.append(config)
  return config.hidden_size * values


def test_an_equal_configuration_finds_the_program_of_another():
  _traced.clear()
  mesh = make_mesh()
  for hidden_size in (24, 24, 36):
    config = BertConfig(hidden_size=hidden_size)
    program = sharding.jit_on_mesh(_scaled, config, mesh=mesh)
    assert program(np.int32(2)) == 2 * hidden_size
  assert [config.hidden_size for config in _traced] == [24, 36]
  # jax knows nothing of rules: other rules make another function.
  none = tuple((name, None) for name, _ in sharding.LOGICAL_AXIS_RULES)
  function = sharding.under(sharding.LOGICAL_AXIS_RULES, _scaled)
  assert sharding.under(sharding.LOGICAL_AXIS_RULES, _scaled) is function
  assert sharding.under(none, _scaled) is not function


def _create(mesh, **settings):
  init = functools.partial(tiny.init, "inverse_cloze")
  return create_state(init, OPTIMIZER, seed=0, mesh=mesh, **settings)


@pytest.mark.slow
def test_sizes_that_devices_cannot_share_are_refused_or_not_divided():
  mesh = make_mesh(devices=jax.devices()[:3], model_parallelism=3)
  whole = [("heads", None), ("mlp", None)]
  with pytest.raises(
    ValueError, match=r"40 along 'vocab'.* change MODEL_PARALLELISM, or "
  ) as error:
    _create(mesh, axis_rules=sharding.with_defaults(whole))
  assert "--gin.AXIS_RULES='[(\"vocab\", None)]'" in str(error.value)
  mesh = make_mesh(devices=jax.devices()[:3], fsdp=3)
  with pytest.raises(ValueError, match=r"8 along 'embed'.* change FSDP"):
    _create(mesh)
  unshared = sharding.with_defaults([("embed", None)])
  state = _create(mesh, axis_rules=unshared)
  assert all(leaf.is_fully_replicated for leaf in jax.tree.leaves(state))
