"""T5: dropout, vocabularies and initial values.

That it computes what transformers computes is shown in `tests/weights`.
"""

import dataclasses
import functools

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import meta

from harness.agreement.t5 import packed
from realm_jax.errors import RealmError
from realm_jax.models.decoding import generate
from realm_jax.models.packing import (
  TokenSequences,
  lay_out,
  lengths_of,
  plan_bins,
)
from realm_jax.models.parameters import parameter_shardings
from realm_jax.models.sequences import padded
from realm_jax.models.t5 import T5, T5Config, log_likelihood
from realm_jax.partitioning import sharding
from realm_jax.partitioning.mesh import make_mesh

CONFIG = T5Config(
  vocab_size=128,
  hidden_size=12,
  num_layers=2,
  num_heads=2,
  head_size=5,
  intermediate_size=20,
  dropout_rate=0.3,
)


def _random_tokens(*shape):
  rng = np.random.default_rng(0)
  tokens = rng.integers(2, CONFIG.vocab_size, shape, dtype=np.int32)
  lengths = rng.integers(1, shape[-1] + 1, shape[:-1])
  return np.where(np.arange(shape[-1]) < lengths[..., None], tokens, 0)


def test_dropout_does_not_depend_on_the_layout():
  model = T5(dataclasses.replace(CONFIG, num_layers=1))
  params = meta.unbox(jax.jit(model.init_parameters)(jax.random.key(0)))
  inputs, targets = _random_tokens(12, 9), jnp.asarray(_random_tokens(4, 5))

  @functools.partial(jax.jit, static_argnames="drops")
  def likelihood(sequences, *, drops):
    rngs = {"dropout": jax.random.key(1)} if drops else {}
    logits = model.apply(
      {"params": params}, sequences, targets, fused=3, rngs=rngs
    )
    return log_likelihood(logits, targets)

  bins = packed(inputs)
  assert len(bins.token_ids) < len(inputs)
  ids = jnp.arange(len(inputs), dtype=jnp.uint32)
  one_a_bin = padded(jnp.asarray(inputs), ids)
  for drops in (False, True):
    ours = likelihood(bins, drops=drops)
    theirs = likelihood(one_a_bin, drops=drops)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
  without = likelihood(bins, drops=False)
  assert np.abs(ours - without).max() > 0.01
  assert (np.asarray(without)[np.asarray(targets) == 0] == 0).all()


def test_devices_that_share_batch_and_matrices_compute_the_same():
  config = dataclasses.replace(
    CONFIG, hidden_size=16, head_size=6, num_layers=1
  )
  model = T5(config)
  boxed = jax.jit(model.init_parameters)(jax.random.key(0))
  inputs, targets = _random_tokens(16, 9), _random_tokens(8, 5)
  ids = np.arange(16, dtype=np.uint32)

  def loss(params, sequences, targets):
    logits = model.apply(
      *({"params": params}, sequences, targets),
      fused=2,
      rngs={"dropout": jax.random.key(1)},
    )
    return -log_likelihood(logits, targets).sum()

  def write(params, sequences):
    memory = model.apply(
      {"params": params}, sequences, method="encode_memory"
    ).fused(2)
    return generate(model, params, memory, max_tokens=4, num_beams=2)

  def computed(groups, mesh):
    # Each group's sequences lie in bins of its own.
    tokens = TokenSequences(jnp.asarray(inputs), ids)
    lengths = lengths_of(tokens, groups=groups)
    bins = 16 // groups
    plan = plan_bins(lengths, bin_length=9, num_bins=bins)
    rules = sharding.LOGICAL_AXIS_RULES
    params = jax.device_put(
      meta.unbox(boxed), parameter_shardings(boxed, mesh, rules)
    )
    batch = lay_out(plan, tokens, num_bins=bins), jnp.asarray(targets)
    batch = jax.device_put(batch, sharding.batch_sharding(mesh))
    on_mesh = functools.partial(sharding.jit_on_mesh, mesh=mesh)
    gradient = on_mesh(jax.grad(loss))(params, *batch)
    return jax.device_get((gradient, on_mesh(write)(params, batch[0])))

  with jax.default_matmul_precision("highest"):
    alone, texts = computed(1, make_mesh(devices=jax.devices()[:1]))
    mesh = make_mesh(fsdp=2, model_parallelism=2, devices=jax.devices()[:8])
    shared, same = computed(4, mesh)
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4),
    *(alone, shared),
  )
  np.testing.assert_array_equal(texts.token_ids, same.token_ids)
  np.testing.assert_allclose(texts.scores, same.scores, rtol=1e-5)


def test_gradients_in_bfloat16_and_computed_again_are_near():
  inputs = padded(jnp.asarray(_random_tokens(4, 9)))
  targets = _random_tokens(4, 5)
  config = dataclasses.replace(CONFIG, num_layers=1)
  init = jax.jit(T5(config).init_parameters)
  params = meta.unbox(init(jax.random.key(0)))

  def gradient(config):
    model = T5(config)

    def loss(params):
      logits = model.apply({"params": params}, inputs, jnp.asarray(targets))
      return -log_likelihood(logits, jnp.asarray(targets)).sum()

    gradients = jax.jit(jax.grad(loss))(params)
    return jax.flatten_util.ravel_pytree(gradients)[0]

  reference = gradient(config)
  for changes in (
    {"remat_policy": "nothing_saveable"},
    {"dtype": "bfloat16", "remat_policy": "dots_saveable"},
  ):
    other = gradient(dataclasses.replace(config, **changes))
    norms = jnp.linalg.norm(reference) * jnp.linalg.norm(other)
    assert jnp.vdot(reference, other) / norms > 0.99, changes


def test_embeddings_are_padded_for_a_vocabulary():
  config = T5Config()
  assert config.for_vocabulary(32_100).vocab_size == 32_128
  assert CONFIG.for_vocabulary(100) == CONFIG
  with pytest.raises(RealmError, match="the vocabulary has 200 tokens"):
    CONFIG.for_vocabulary(200)
  with pytest.raises(RealmError, match="for_vocabulary"):
    T5(config).init_parameters(jax.random.key(0))


def test_mimetic_values_take_over_neighbours():
  """And its projections need heads that are as wide as the hidden states."""
  config = dataclasses.replace(
    CONFIG, num_heads=3, head_size=12, dropout_rate=0.0
  )
  with pytest.raises(RealmError, match="head_size=5 and hidden_size=12"):
    dataclasses.replace(CONFIG, initialization="mimetic")
  text = np.arange(2, 22)[None]

  def changes(initialization):
    """How much a token's state depends on its neighbours, and on others."""
    model = T5(dataclasses.replace(config, initialization=initialization))
    params = meta.unbox(jax.jit(model.init_parameters)(jax.random.key(0)))

    @jax.jit
    def state(tokens):
      sequences = padded(tokens)
      hidden = model.apply({"params": params}, sequences, method="encode")
      return hidden[0, 10]

    def change(place):
      other = text.copy()
      other[0, place] = 99
      return np.linalg.norm(state(other) - state(text))

    near, far = (9, 11), (2, 5, 14, 18)
    return [np.mean([*map(change, places)]) for places in (near, far)]

  near, far = changes("mimetic")
  assert near > 3 * far
  near, far = changes("t5")
  assert near < 3 * far
