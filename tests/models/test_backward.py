"""Backward passes that are written out, against automatic ones in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from realm_jax.models import dropout
from realm_jax.models.attention import plain as plain_attention
from realm_jax.models.attention.inputs import Settings
from realm_jax.models.attention.plain import HeadInputs, attend_by_heads
from realm_jax.models.bert import layer_norm
from realm_jax.models.bert import layers as bert_layers
from realm_jax.models.bert.activations import ACTIVATIONS, activate_and_project
from realm_jax.models.bert.layer_norm import normalize
from realm_jax.models.dropout import drop, mix
from realm_jax.partitioning.mesh import make_mesh
from tests.training import tiny

pytestmark = pytest.mark.slow

ROWS, LENGTH, HEADS, SIZE = 3, 6, 2, 4


def _draw(seed, *shape):
  values = np.random.default_rng(seed).normal(size=shape)
  return jnp.asarray(values, jnp.float32)


def _assert_same_gradients(ours, plain, *inputs):
  argnums = tuple(range(len(inputs)))
  # A sum of squares gives each output a gradient of its own.
  got = jax.grad(lambda *x: (ours(*x) ** 2).sum(), argnums)(*inputs)
  with jax.enable_x64(True):
    exact = tuple(jnp.asarray(np.float64(x)) for x in inputs)
    want = jax.grad(lambda *x: (plain(*x) ** 2).sum(), argnums)(*exact)
    expected = plain(*exact)
  assert expected.dtype == np.float64
  np.testing.assert_allclose(ours(*inputs), expected, atol=4e-6)
  for ours_, plain_ in zip(got, want, strict=True):
    np.testing.assert_allclose(ours_, plain_, rtol=2e-5, atol=1e-4)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_activation_and_projection(name):
  def plain(x, kernel, bias):
    approximate = name == "gelu_tanh"
    return jax.nn.gelu(x, approximate=approximate) @ kernel + bias[None]

  _assert_same_gradients(
    lambda *x: activate_and_project(name, *x),
    plain,
    3 * _draw(0, 20, 8),
    _draw(1, 8, 5),
    _draw(2, 5),
  )


def test_layer_norm():
  def plain(x, scale, bias):
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred**2).mean(-1, keepdims=True)
    return centred / jnp.sqrt(variance + 1e-3) * scale[None] + bias[None]

  _assert_same_gradients(
    lambda *x: normalize(*x, 1e-3),
    plain,
    2 * _draw(0, 7, 8) + 1,
    _draw(1, 8),
    _draw(2, 8),
  )


@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_attention(rate):
  sequence = jnp.array([[0] * 6, [1, 1, 2, 2, 2, -1], [3, 3, 3, 3, -1, -1]])
  rows = mix(jnp.arange(ROWS * LENGTH, dtype=jnp.uint32))
  rows = rows.reshape(ROWS, 1, LENGTH, 1)
  columns = jnp.arange(HEADS * LENGTH, dtype=jnp.uint32)
  columns = columns.reshape(1, HEADS, 1, LENGTH)
  settings = Settings(
    head_size=SIZE, max_positions=LENGTH, mask_value=-1e4, dropout_rate=rate
  )

  def ours(query, key, value):
    inputs = HeadInputs(query, key, value, sequence, rows, columns)
    return attend_by_heads(inputs, settings)

  def plain(query, key, value):
    outputs = []
    for row in range(ROWS):
      heads = []
      for head in range(HEADS):
        scores = query[row, :, head] @ key[row, :, head].T
        same = sequence[row][:, None] == sequence[row][None]
        weights = jax.nn.softmax(jnp.where(same, scores, -jnp.inf), axis=-1)
        ones = jnp.ones_like(weights)
        kept = drop(ones, rows[row, 0], columns[0, head], rate)
        heads.append((weights * kept) @ value[row, :, head])
      outputs.append(jnp.stack(heads, axis=1))
    return jnp.stack(outputs)

  shape = (ROWS, LENGTH, HEADS, SIZE)
  _assert_same_gradients(
    ours, plain, _draw(0, *shape), _draw(1, *shape), _draw(2, *shape)
  )


def test_a_model_without_them_has_the_same_gradients(monkeypatch):
  # What jax derives from the same forward functions.
  loss = tiny.loss("inverse_cloze", dropout_rate=0.2)
  mesh = make_mesh(devices=jax.devices()[:1])
  params = tiny.state("inverse_cloze", optax.sgd(1.0), mesh)[0].params
  batch = jax.tree.map(jnp.asarray, tiny.batch("inverse_cloze"))

  def gradient():
    def mean_loss(params):
      return loss(params, batch, jax.random.key(1)).loss.mean

    return jax.jit(jax.grad(mean_loss))(params)

  ours = gradient()
  for module, name in (
    (plain_attention, "attend_by_heads"),
    (plain_attention, "drop"),
    (bert_layers, "activate_and_project"),
    (dropout, "drop"),
    (layer_norm, "normalize"),
  ):
    function = getattr(module, name)
    assert isinstance(function, jax.custom_vjp)
    monkeypatch.setattr(module, name, function.fun)
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6),
    ours,
    gradient(),
  )
