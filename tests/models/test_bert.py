"""The encoder: precision, dropout and initial values.

That it computes what transformers computes is shown in `tests/weights`.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from realm_jax.models.bert import BertConfig, BertEncoder
from realm_jax.models.sequences import padded as one_a_row

CLS, SEP = 2, 3
CONFIG = BertConfig(
  vocab_size=31,
  separator_id=SEP,
  hidden_size=12,
  num_layers=2,
  num_heads=3,
  intermediate_size=20,
  max_positions=16,
)
TOKENS = np.array(
  [
    [CLS, 7, 9, SEP, 0, 0, 0],
    [CLS, 8, SEP, 5, 6, 7, SEP],
    [CLS, SEP, SEP, 0, 0, 0, 0],
  ],
  np.int32,
)


@pytest.fixture(scope="module")
def params():
  encoder = BertEncoder(CONFIG)
  shapes = jax.eval_shape(
    lambda: encoder.init(
      jax.random.key(0), one_a_row(jnp.ones((1, 4), jnp.int32))
    )
  )
  rng = np.random.default_rng(0)
  return jax.tree.map(
    lambda leaf: rng.normal(0, 0.3, leaf.shape).astype(np.float32),
    nn.unbox(shapes["params"]),
  )


@functools.partial(jax.jit, static_argnames="config")
def _encode_jitted(params, token_ids, rngs, config):
  return BertEncoder(config).apply(
    {"params": params}, one_a_row(token_ids), rngs=rngs
  )


def _encode(params, token_ids, config=CONFIG, rngs=None):
  return np.asarray(_encode_jitted(params, token_ids, rngs, config))


def test_bfloat16_stays_near_float32(params):
  config = dataclasses.replace(CONFIG, dtype=jnp.bfloat16)
  half = _encode(params, TOKENS, config)
  assert half.dtype == jnp.bfloat16
  whole = _encode(params, TOKENS)
  is_token = TOKENS != 0
  distance = np.abs(half.astype(np.float32) - whole)[is_token]
  assert distance.mean() < 0.02


def test_dropout_only_when_training(params):
  calm = _encode(params, TOKENS)
  np.testing.assert_array_equal(calm, _encode(params, TOKENS))
  dropped = _encode(params, TOKENS, rngs={"dropout": jax.random.key(1)})
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


@pytest.mark.parametrize(("length", "dropout_rate"), [(8, 0.5), (7, 0.0)])
def test_cudnn_leaves_to_xla_what_its_kernel_cannot(
  params, length, dropout_rate
):
  tokens = np.pad(TOKENS, ((0, 0), (0, length - TOKENS.shape[1])))
  ours, theirs = (
    _encode(
      params,
      tokens,
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
