"""Backward passes that are written out, against automatic ones in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from realm_jax.models import dropout
from realm_jax.models.attention import plain as plain_attention
from realm_jax.models.bert import layer_norm
from realm_jax.models.bert import layers as bert_layers
from realm_jax.partitioning.mesh import make_mesh
from tests.training import tiny

pytestmark = pytest.mark.slow

ROWS, LENGTH, HEADS, SIZE = 3, 6, 2, 4


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
