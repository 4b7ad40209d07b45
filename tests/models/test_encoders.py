"""BERT and the towers: precision, dropout and initial values.

That they compute what transformers computes is shown in `tests/weights`.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from realm_jax.models import packing
from realm_jax.models.bert import BertConfig, BertEncoder
from realm_jax.models.components import Components
from realm_jax.models.reader import BertReader
from realm_jax.models.retriever import BertRetriever
from realm_jax.models.sequences import gather
from realm_jax.models.sequences import padded as one_a_row
from realm_jax.weights.mapped_weights import flattened

CLS, SEP = 2, 3
CONFIG = BertConfig(
  vocab_size=31,
  separator_id=SEP,
  hidden_size=12,
  num_layers=3,
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


def _random(init, *inputs):
  """Random parameters of a module."""
  shapes = jax.eval_shape(lambda: init(jax.random.key(0), *inputs))
  rng = np.random.default_rng(0)
  return jax.tree.map(
    lambda leaf: rng.normal(0, 0.3, leaf.shape).astype(np.float32),
    nn.unbox(shapes["params"]),
  )


@pytest.fixture(scope="module")
def params():
  return _random(BertEncoder(CONFIG).init, one_a_row(jnp.asarray(TOKENS)))


@functools.partial(jax.jit, static_argnames=("config", "first_only"))
def _encode_jitted(params, token_ids, rngs, config, first_only):
  return BertEncoder(config).apply(
    {"params": params}, one_a_row(token_ids), first_only=first_only, rngs=rngs
  )


def _encode(params, tokens=TOKENS, config=CONFIG, rngs=None, first_only=False):
  return np.asarray(_encode_jitted(params, tokens, rngs, config, first_only))


def _initial(config):
  """The values of an encoder that is trained from nothing, by path."""
  tokens = one_a_row(jnp.ones((1, 4), jnp.int32))
  init = jax.jit(BertEncoder(config).init)
  params = nn.unbox(init(jax.random.key(0), tokens))
  return {
    jax.tree_util.keystr(path): np.asarray(leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params)
  }


@pytest.mark.parametrize(
  ("dropout_rate", "remat_policy"),
  [
    (0.0, None),
    pytest.param(0.5, "nothing_saveable", marks=pytest.mark.slow),
  ],
)
def test_the_last_layer_at_the_first_token_alone_changes_nothing(
  params, dropout_rate, remat_policy
):
  config = dataclasses.replace(
    CONFIG, dropout_rate=dropout_rate, remat_policy=remat_policy
  )
  rngs = {"dropout": jax.random.key(1)}
  whole = _encode(params, config=config, rngs=rngs)
  first = _encode(params, config=config, rngs=rngs, first_only=True)
  assert first.shape == (3, 1, 12)
  np.testing.assert_allclose(first, whole[:, :1], atol=1e-5)
  # It drops only while training.
  calm = _encode(params, config=config)
  assert np.allclose(calm, whole) == (dropout_rate == 0)


def test_each_layer_has_masks_of_its_own(params):
  config = dataclasses.replace(CONFIG, dropout_rate=0.5)
  rngs = {"dropout": jax.random.key(1)}
  gradient = jax.jit(
    jax.grad(
      lambda params: jnp.sum(
        _encode_jitted(params, TOKENS[:1, :1], rngs, config, False) ** 3
      )
    )
  )
  # What the only token drops has no gradient.
  masks = [
    tuple(np.asarray(bias != 0))
    for path, bias in flattened({"encoder": gradient(params)}).items()
    if path.endswith(("attention/output/bias", "down/bias"))
  ]
  assert len(masks) == len({*masks}) == 2 * CONFIG.num_layers
  assert 0.2 < np.mean(masks) < 0.8


def test_masks_do_not_depend_on_the_layout(params):
  config = dataclasses.replace(CONFIG, dropout_rate=0.5)
  encoder, rngs = BertEncoder(config), {"dropout": jax.random.key(1)}
  ids = np.arange(len(TOKENS), dtype=np.uint32)

  @jax.jit
  def encode(params):
    # Sequences of 7, 4 and 3 tokens lie in two bins.
    unpacked = packing.TokenSequences(TOKENS, ids)
    lengths = packing.lengths_of(unpacked, groups=1)
    plan = packing.plan_bins(lengths, bin_length=7, num_bins=2)
    packed = packing.lay_out(plan, unpacked, num_bins=2)
    return [
      gather(one, encoder.apply({"params": params}, one, rngs=rngs), offsets)
      for one in (packed, one_a_row(TOKENS, ids))
    ]

  offsets = np.tile(np.arange(3), (len(TOKENS), 1))
  packed, padded = encode(params)
  np.testing.assert_allclose(packed, padded, atol=1e-5)


def test_initial_values_are_berts():
  values = _initial(dataclasses.replace(CONFIG, vocab_size=2000, num_layers=1))
  (table,) = (v for k, v in values.items() if "word_embeddings" in k)
  # TF1's truncated_normal: cut at two deviations and not scaled up again, so
  # that √(1 − 4φ(2) / (2Φ(2) − 1)) = 0.8796 of the deviation remains.
  assert abs(table.std() - 0.8796 * 0.02) < 2e-4
  assert np.abs(table).max() <= 0.04
  assert not any(v.any() for k, v in values.items() if "['bias']" in k)


@pytest.mark.slow
def test_mimetic_values_are_sinusoids_and_near_identities():
  values = _initial(
    dataclasses.replace(
      CONFIG, hidden_size=48, init_stddev=0.1, initialization="mimetic"
    )
  )
  projections = [
    kernel
    for name, leaf in values.items()
    if leaf.shape[-2:] == (48, 48) and "attention" in name
    for kernel in leaf.reshape(-1, 48, 48)
  ]
  assert len(projections) == 4 * CONFIG.num_layers
  for kernel in projections:
    assert 0 < np.abs(kernel - np.eye(48)).max() < 0.1
  (positions,) = (v for k, v in values.items() if "position_embeddings" in k)
  # Sines and cosines of the same angles: all as long, and the product of two
  # positions depends on their distance alone.
  products = positions @ positions.T
  assert np.diag(products) == pytest.approx(48 * 0.1**2, rel=1e-5)
  for distance in range(1, CONFIG.max_positions):
    diagonal = np.diag(products, distance)
    assert diagonal == pytest.approx(diagonal[0], abs=1e-5)


def test_cudnn_attends_as_xla_does(monkeypatch):
  attend = jax.nn.dot_product_attention
  if jax.default_backend() != "gpu":
    # jax computes the same function, of the same arrays, without the kernel.
    monkeypatch.setattr(
      jax.nn,
      "dot_product_attention",
      lambda *arrays, implementation, **named: attend(*arrays, **named),
    )
  rng = np.random.default_rng(0)
  tokens = rng.integers(5, 20, (4, 16))
  tokens[1, 9:] = 0
  sequences = one_a_row(jnp.asarray(tokens))
  config = dataclasses.replace(
    CONFIG, hidden_size=64, num_heads=2, num_layers=1, dtype=jnp.bfloat16
  )
  variables = {"params": _random(BertEncoder(config).init, sequences)}

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


@pytest.mark.parametrize("shared", [True, False])
def test_the_query_tower_alone_embeds_queries(shared):
  retriever = BertRetriever(CONFIG, projection_size=5, shared_towers=shared)
  params = _random(retriever.init, TOKENS, TOKENS)
  alone = retriever.query_tower_parameters(params)
  assert len(alone) == 1

  @jax.jit
  def embed(params):
    variables = {"params": params}
    return retriever.apply(variables, TOKENS, method="embed_queries")

  np.testing.assert_array_equal(embed(alone), embed(params))


def test_components_are_equal_in_any_order():
  modules = [
    ("retriever", BertRetriever(CONFIG)),
    ("reader", BertReader(CONFIG)),
  ]
  components = [Components(dict(one)) for one in (modules, modules[::-1])]
  assert len({*components}) == 1


def test_scores_are_float32_in_mixed_precision():
  # The losses are sums of their exponentials and logarithms.
  bert = dataclasses.replace(CONFIG, dtype=jnp.bfloat16, max_positions=24)
  reader = BertReader(bert, joint_length=14, span_size=6, max_answer_width=3)
  inputs = jax.random.key(0), TOKENS, TOKENS[:, None], np.ones((3, 2), np.int32)
  (logits, spans), _ = jax.eval_shape(lambda: reader.init_with_output(*inputs))
  assert logits.dtype == spans.logits.dtype == jnp.float32
  vectors, _ = jax.eval_shape(
    lambda: BertRetriever(bert).init_with_output(*inputs[:3])
  )
  assert {one.dtype for one in vectors} == {jnp.dtype(jnp.float32)}
