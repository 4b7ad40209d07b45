"""The attention kernel, interpreted on CPUs, against the plain computation."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from realm_jax.models import sequences, tpu_attention
from realm_jax.models.attention import AttentionInputs, Settings
from realm_jax.models.bert import BertConfig, BertEncoder
from realm_jax.partitioning import sharding
from realm_jax.partitioning.mesh import make_mesh

pytestmark = pytest.mark.slow

# Four heads of 64 share two times 128 lanes.
_CONFIG = BertConfig(
  vocab_size=50,
  separator_id=3,
  hidden_size=256,
  num_layers=1,
  num_heads=4,
  intermediate_size=64,
  max_positions=64,
  dropout_rate=0.3,
  attention="pallas",
)
_ROWS, _LENGTH = 4, 48


@pytest.fixture
def packed() -> sequences.Sequences:
  """Rows that hold one, two or three sequences, and padding."""
  rng = np.random.default_rng(0)
  lengths = [[48], [20, 28], [5, 30], [10, 10, 10]]
  sequence = np.full((_ROWS, _LENGTH), sequences.NO_SEQUENCE, np.int32)
  position = np.zeros((_ROWS, _LENGTH), np.int32)
  number = 0
  for row, of_row in enumerate(lengths):
    start = 0
    for length in of_row:
      sequence[row, start : start + length] = number
      position[row, start : start + length] = np.arange(length)
      start, number = start + length, number + 1
  made = sequences.Sequences(
    token_ids=rng.integers(5, 50, (_ROWS, _LENGTH)).astype(np.int32),
    sequence=sequence,
    position=position,
    starts=np.zeros((1, number), np.int32),
    numbers=np.arange(number, dtype=np.uint32)[None],
  )
  return jax.tree.map(jnp.asarray, made)


def _loss(config, params, inputs, key):
  rngs = None if key is None else {"dropout": key}
  hidden = BertEncoder(config).apply({"params": params}, inputs, rngs=rngs)
  is_token = (inputs.sequence != sequences.NO_SEQUENCE)[..., None]
  return jnp.sum(jnp.where(is_token, hidden, 0) ** 2) / 100, hidden


def _values(config, params, inputs, key):
  """Returns hidden states and gradients."""
  function = functools.partial(_loss, config)
  gradient, hidden = jax.jit(jax.grad(function, has_aux=True))(
    params, inputs, key
  )
  return {"hidden": hidden, "gradient": gradient}


def _params(inputs):
  variables = BertEncoder(_CONFIG).init(jax.random.key(0), inputs)
  return nn.meta.unbox(variables)["params"]


@pytest.mark.parametrize(
  ("dtype", "tolerance", "drops"),
  [
    (jnp.float32, 1e-5, True),
    (jnp.bfloat16, 1e-2, False),
  ],
)
def test_it_computes_what_xla_does(packed, dtype, tolerance, drops):
  params = _params(packed)
  config = dataclasses.replace(_CONFIG, dtype=dtype)
  plain = dataclasses.replace(config, attention="xla")
  key = jax.random.key(1) if drops else None
  expected = _values(plain, params, packed, key)
  got = _values(config, params, packed, key)

  def compare(path, want, value):
    scale = max(1.0, float(jnp.abs(want).max()))
    np.testing.assert_allclose(
      np.float32(value),
      np.float32(want),
      atol=tolerance * scale,
      err_msg=str(path),
    )

  jax.tree_util.tree_map_with_path(compare, expected, got)


def test_devices_divide_its_rows_and_heads(packed):
  params = _params(packed)
  key = jax.random.key(1)
  alone = _values(_CONFIG, params, packed, key)
  mesh = make_mesh(fsdp=2, model_parallelism=2)
  function = sharding.under(
    sharding.LOGICAL_AXIS_RULES, functools.partial(_values, _CONFIG)
  )
  with jax.set_mesh(mesh):
    program = jax.jit(function).lower(params, packed, key).compile()
    together = program(params, packed, key)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), alone, together
  )


def _fits(*, rows=8, length=288, num_queries=None, width=768, head_size=64):
  def shaped(shape, dtype=jnp.int32):
    return jax.ShapeDtypeStruct(shape, dtype)

  queries = num_queries or length
  key = shaped((rows * length, width), jnp.float32)
  integers = shaped((rows, length))
  inputs = AttentionInputs(
    query=shaped((rows * queries, width), jnp.float32),
    key=key,
    value=key,
    sequence=integers,
    tokens=shaped((rows, queries), jnp.uint32),
    position=integers,
  )
  settings = Settings(
    head_size=head_size, max_positions=512, mask_value=-1e4, dropout_rate=0.0
  )
  return tpu_attention.fits(inputs, settings)


@pytest.mark.parametrize(
  "sizes",
  [
    {"length": 520},
    {"length": 100},
    {"length": 96, "width": 96, "head_size": 32},
    # Only the first tokens attend.
    {"num_queries": 1},
  ],
)
def test_other_sizes_are_left_to_xla(sizes):
  assert not _fits(**sizes)
  assert _fits()


def test_what_devices_cannot_divide_is_left_to_xla():
  mesh = make_mesh(fsdp=2, model_parallelism=2)
  with (
    jax.set_mesh(mesh),
    nn.logical_axis_rules(sharding.LOGICAL_AXIS_RULES),
  ):
    assert _fits()
    assert not _fits(rows=6)
    assert not _fits(width=128)
  with nn.logical_axis_rules(sharding.LOGICAL_AXIS_RULES):
    assert _fits(rows=6)
