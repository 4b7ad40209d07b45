"""The encoder against a second one in numpy, and what its users rely on."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from realm_jax.models.bert import BertConfig, BertEncoder
from realm_jax.models.sequences import padded as one_a_row
from tests.models import numpy_bert
from tests.models.numpy_bert import CLS, SEP, padded

CONFIG = BertConfig(
  vocab_size=31,
  separator_id=SEP,
  hidden_size=12,
  num_layers=2,
  num_heads=3,
  intermediate_size=20,
  max_positions=16,
)
ROWS = [
  [CLS, 7, 9, SEP],
  [CLS, 8, SEP, 5, 6, 7, SEP],
  [CLS, SEP, SEP],
  [CLS, 30, 29, 28, 27, 26, SEP, 25, 24, 23, 22, SEP],
]


@pytest.fixture(scope="module")
def params():
  encoder = BertEncoder(CONFIG)
  shapes = jax.eval_shape(
    lambda: encoder.init(
      jax.random.key(0), one_a_row(jnp.ones((1, 4), jnp.int32))
    )
  )
  return numpy_bert.random_parameters(nn.unbox(shapes["params"]))


@functools.partial(jax.jit, static_argnames="config")
def _encode_jitted(params, token_ids, rngs, config):
  return BertEncoder(config).apply(
    {"params": params}, one_a_row(token_ids), rngs=rngs
  )


def _encode(params, token_ids, config=CONFIG, rngs=None):
  return np.asarray(_encode_jitted(params, token_ids, rngs, config))


def test_equals_a_bert_in_numpy(params):
  hidden = _encode(params, padded(ROWS, 12))
  for row, tokens in enumerate(ROWS):
    np.testing.assert_allclose(
      hidden[row, : len(tokens)],
      numpy_bert.encode(tokens, params, CONFIG),
      atol=1e-5,
    )


@pytest.mark.parametrize(
  ("activation", "value"),
  [
    # Φ(1) = 0.8413447; the approximation gives 0.8411920.
    ("gelu", 0.5 * (1 + math.erf(1 / math.sqrt(2)))),
    ("gelu_tanh", float(numpy_bert.gelu(1.0))),
  ],
)
def test_activation_is_the_configured_one(params, activation, value):
  # One layer that copies 1 into `up`, and whose output is then all gelu(1).
  config = dataclasses.replace(
    CONFIG, num_layers=1, activation=activation, layer_norm_eps=1e6
  )
  tokens = padded(ROWS[:1], 4)
  params = jax.tree.map(np.zeros_like, params)
  layer = params["layer_0"]
  layer["up"]["bias"] += 1.0
  layer["down"]["kernel"][0, 0] = 1.0
  layer["output_norm"]["scale"] += 1e3
  hidden = _encode(params, tokens, config)
  # LayerNorm of (g, 0, …, 0) with so large an epsilon is (g - g/12) / 1000.
  np.testing.assert_allclose(hidden[0, 0, 0], value * 11 / 12, atol=1e-4)


def test_bfloat16_stays_near_float32(params):
  config = dataclasses.replace(CONFIG, dtype=jnp.bfloat16)
  tokens = padded(ROWS, 12)
  half = _encode(params, tokens, config)
  assert half.dtype == jnp.bfloat16
  whole = _encode(params, tokens)
  is_token = tokens != 0
  distance = np.abs(half.astype(np.float32) - whole)[is_token]
  assert distance.mean() < 0.02


def test_dropout_only_when_training(params):
  tokens = padded(ROWS, 12)
  calm = _encode(params, tokens)
  np.testing.assert_array_equal(calm, _encode(params, tokens))
  dropped = _encode(params, tokens, rngs={"dropout": jax.random.key(1)})
  assert np.abs(calm - dropped).max() > 0.1


def test_initial_values_are_berts():
  config = dataclasses.replace(CONFIG, vocab_size=2000, num_layers=1)
  init = jax.jit(BertEncoder(config).init)
  tokens = one_a_row(jnp.ones((1, 4), jnp.int32))
  params = init(jax.random.key(0), tokens)["params"]
  table = np.asarray(params["word_embeddings"].value)
  # TF1's truncated_normal: cut at two deviations and not scaled up again, so
  # that √(1 − 4φ(2) / (2Φ(2) − 1)) = 0.8796 of the deviation remains.
  assert abs(table.std() - 0.8796 * 0.02) < 2e-4
  assert np.abs(table).max() <= 0.04
  assert not params["layer_0"]["up"]["bias"].value.any()


def test_mimetic_values_are_sinusoids_and_near_identities():
  config = dataclasses.replace(
    CONFIG, hidden_size=48, init_stddev=0.1, initialization="mimetic"
  )
  encoder = BertEncoder(config)
  tokens = one_a_row(jnp.ones((1, 4), jnp.int32))
  init = jax.jit(lambda: encoder.init(jax.random.key(0), tokens))
  params = nn.unbox(init()["params"])
  leaves = {
    jax.tree_util.keystr(path): np.asarray(leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params)
  }
  projections = [
    leaf
    for name, leaf in leaves.items()
    if leaf.shape == (48, 48) and "attention" in name
  ]
  assert len(projections) == 4 * config.num_layers
  for kernel in projections:
    assert 0 < np.abs(kernel - np.eye(48)).max() < 0.1
  (positions,) = (v for k, v in leaves.items() if "position_embeddings" in k)
  # Sines and cosines of the same angles: all as long, and the product of two
  # positions depends on their distance alone.
  products = positions @ positions.T
  assert np.diag(products) == pytest.approx(48 * 0.1**2, rel=1e-5)
  for distance in range(1, config.max_positions):
    diagonal = np.diag(products, distance)
    assert diagonal == pytest.approx(diagonal[0], abs=1e-5)
  assert products[0].argsort()[-2:].tolist() == [1, 0]


@pytest.mark.parametrize(("length", "dropout_rate"), [(12, 0.5), (13, 0.0)])
def test_cudnn_leaves_to_xla_what_its_kernel_cannot(
  params, length, dropout_rate
):
  ours, theirs = (
    _encode(
      params,
      padded(ROWS, length),
      dataclasses.replace(CONFIG, dropout_rate=dropout_rate, attention=name),
      {"dropout": jax.random.key(1)},
    )
    for name in ("xla", "cudnn")
  )
  np.testing.assert_array_equal(ours, theirs)


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="no GPU")
def test_cudnn_attends_as_xla_does():
  rng = np.random.default_rng(0)
  tokens = rng.integers(5, 20, (4, 16))
  tokens[1, 9:] = 0
  sequences = one_a_row(jnp.asarray(tokens))
  config = dataclasses.replace(
    CONFIG, hidden_size=64, num_heads=1, max_positions=16, dtype=jnp.bfloat16
  )
  variables = BertEncoder(config).init(jax.random.key(0), sequences)

  def gradients(name):
    encoder = BertEncoder(dataclasses.replace(config, attention=name))

    def loss(variables):
      hidden = encoder.apply(variables, sequences).astype(jnp.float32)
      return jnp.mean(jnp.where(tokens[..., None] > 0, hidden, 0) ** 3)

    return jax.jit(jax.value_and_grad(loss))(variables)

  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=0.05, atol=0.02),
    gradients("xla"),
    gradients("cudnn"),
  )
