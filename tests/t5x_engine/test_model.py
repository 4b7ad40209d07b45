"""A stage in t5x's interfaces; skipped where t5x is absent."""

import functools
import types

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

pytest.importorskip("t5x", reason="t5x is absent; `make t5x` adds it")

from t5x.train_state import FlaxOptimTrainState

from realm_jax.t5x_engine.model import StageModel, logical_axis_rules
from realm_jax.t5x_engine.run import EngineRun, flatten
from realm_jax.training.config import MeshConfig
from realm_jax.training.optimizer import OptimizerConfig, make_optimizer
from tests.training import tiny

_OPTIMIZER = OptimizerConfig(learning_rate=0.1, warmup_steps=1)


class _Run(EngineRun):
  """A run of a tiny stage that opens nothing."""

  def __init__(self, stage, *, freeze_steps=0, dropout_rate=0.0, pack=True):
    batch = tiny.batch(stage)
    self.example = flatten(batch)
    self._structure = jax.tree.structure(batch)
    self.config = types.SimpleNamespace(
      optimizer=types.SimpleNamespace(freeze_retriever_steps=freeze_steps),
      data=types.SimpleNamespace(batch_size=tiny.BATCH),
      mesh=MeshConfig(),
    )
    self.setup = types.SimpleNamespace(
      corpus=None,
      init=functools.partial(tiny.init, stage),
      layout=lambda corpus, mesh: tiny.layout(stage, mesh, pack=pack),
      optimizer=make_optimizer(_OPTIMIZER, num_steps=10),
      **tiny.functions(stage, dropout_rate=dropout_rate),
    )


def _params(stage):
  return flax.linen.unbox(tiny.init(stage, jax.random.key(0)))


@pytest.mark.parametrize("stage", tiny.STAGES)
@pytest.mark.parametrize("pack", [False, True])
def test_loss_and_gradient_are_the_stages_on_the_same_batch(stage, pack):
  """Whatever the rows of the batch are, and with the same dropout masks."""
  run = _Run(stage, dropout_rate=0.3, pack=pack)
  model, key = StageModel(run), jax.random.PRNGKey(1)
  batch, params = tiny.batch(stage), _params(stage)
  graded = jax.jit(jax.value_and_grad(model.loss_fn, has_aux=True))
  (loss, metrics), gradient = graded(params, flatten(batch), key)

  def mean(params):
    weighted = tiny.weighted(stage, params, batch, key, dropout_rate=0.3)
    return weighted.loss.mean, weighted.means()

  (ours, means), own = jax.jit(jax.value_and_grad(mean, has_aux=True))(params)
  np.testing.assert_allclose(loss, ours, rtol=1e-5)
  assert metrics.keys() == means.keys()
  for name, value in means.items():
    np.testing.assert_allclose(
      metrics[name].compute(), value, rtol=1e-5, atol=1e-6
    )
  jax.tree.map(
    lambda one, other: np.testing.assert_allclose(one, other, atol=1e-5),
    gradient,
    own,
  )


def test_evaluation_is_without_dropout():
  run, plain = (_Run("inverse_cloze", dropout_rate=rate) for rate in (0.9, 0.0))
  arrays = flatten(tiny.batch("inverse_cloze"))
  params = _params("inverse_cloze")
  losses = [
    jax.jit(StageModel(r).eval_fn)(params, arrays)[0] for r in (run, plain)
  ]
  np.testing.assert_allclose(*losses, rtol=1e-6)


def test_a_summary_weights_the_steps_and_bears_none():
  run = _Run("inverse_cloze")
  arrays = flatten(tiny.batch("inverse_cloze"))
  _, metrics = jax.jit(StageModel(run).eval_fn)(
    _params("inverse_cloze"), arrays
  )
  mean = metrics["accuracy_removed"]
  some, more, none = (
    mean.replace(total=jnp.float32(total), count=jnp.float32(count))
    for total, count in ((3, 4), (0, 2), (0, 0))
  )
  assert some.merge(more).merge(none).compute() == 0.5
  assert none.compute() == 0.0


@pytest.mark.parametrize("freeze_steps", [0, 2])
def test_updates_are_those_of_our_optimizer(freeze_steps):
  stage = "pretraining"
  run = _Run(stage, freeze_steps=freeze_steps)
  model, params = StageModel(run), _params(stage)
  theirs = FlaxOptimTrainState.create(
    model.optimizer_def,
    model.get_initial_variables(jax.random.PRNGKey(0), {}),
  ).replace_params(params)
  state = run.setup.optimizer.init(params)
  for step in range(3):
    gradient = jax.tree.map(lambda p, s=step: np.cos(s + 9 * p), params)
    theirs = theirs.apply_gradient(gradient, learning_rate=None)
    if step < freeze_steps:
      gradient["retriever"] = jax.tree.map(np.zeros_like, gradient["retriever"])
    updates, state = run.setup.optimizer.update(gradient, state, params)
    params = optax.apply_updates(params, updates)
  assert int(theirs.step) == 3
  jax.tree.map(np.testing.assert_array_equal, theirs.params, params)


def test_every_parameter_and_moment_has_its_axes():
  run = _Run("pretraining")
  model = StageModel(run)
  state = jax.eval_shape(
    lambda key: FlaxOptimTrainState.create(
      model.optimizer_def, model.get_initial_variables(key, {})
    ),
    jax.random.PRNGKey(0),
  )
  axes = state.as_logical_axes()
  known = dict(logical_axis_rules(run))

  def check(leaf, names):
    # None stand for an array that every device has in full.
    assert len(names) in (0, leaf.ndim)
    assert all(name in known for name in names)

  names = axes.params
  jax.tree.map(check, state.params, names)
  assert names["reader"]["encoder"]["word_embeddings"][0] == "vocab"
  adam = axes.param_states[1]
  assert adam.mu == adam.nu == names
  assert axes.step is None


def test_rules_name_the_axes_of_t5x_alone():
  run = _Run("pretraining")
  rules = dict(logical_axis_rules(run))
  assert rules["batch"] == rules["activation_batch"] == "data"
  assert rules["vocab"] == rules["heads"] == rules["mlp"] == "model"
  assert set(rules.values()) == {"data", "model", None}
  run.config.mesh = MeshConfig(axis_rules=[("embed", "data")])
  assert ("embed", "data") in logical_axis_rules(run)


def test_micro_batches_and_inference_are_refused():
  run = _Run("inverse_cloze")
  model = StageModel(run)
  half = {
    name: array[: tiny.BATCH // 2]
    for name, array in flatten(tiny.batch("inverse_cloze")).items()
  }
  params = _params("inverse_cloze")
  with pytest.raises(ValueError, match="num_microbatches = None"):
    model.loss_fn(params, half, None)
  for infer in (model.predict_batch, model.score_batch):
    with pytest.raises(ValueError, match=r"predict nor score.*evaluate"):
      infer(params, half)
