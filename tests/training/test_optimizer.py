"""Optimizers and schedules, against the published rules in float64."""

import jax
import numpy as np
import optax
import pytest

from harness.agreement.rules import compare_adam
from realm_jax.errors import RealmError
from realm_jax.training.optimizer import (
  OptimizerConfig,
  learning_rate_schedule,
  make_optimizer,
)
from realm_jax.weights.mapped_weights import flattened, nested


@pytest.mark.slow
def test_equals_the_published_rule_over_fifty_steps():
  row = compare_adam(weight_decay=0.5)
  assert row.passed, row


_FROZEN = {"freeze_retriever_steps": 600, "retriever_rate_scale": 0.5}


@pytest.mark.parametrize(
  ("settings", "step", "rate"),
  [
    ({}, 0, 0.0),
    ({}, 99, 0.99),
    # Warm-up lies on top of a decay that is counted from step 0.
    ({}, 100, 0.9),
    ({}, 1000, 0.0),
    ({"retriever_rate_scale": 0.5}, 50, 0.25),
    ({"retriever_rate_scale": 0.5}, 500, 0.25),
    # A retriever that was frozen has a warm-up of its own.
    (_FROZEN, 600, 0.0),
    (_FROZEN, 650, 0.35 / 4),
    (_FROZEN, 700, 0.3 / 2),
    ({"schedule": "constant"}, 50, 0.5),
    ({"schedule": "constant"}, 1000, 1.0),
    # Atlas': a quarter of a cosine, from the end of the warm-up to a tenth.
    ({"schedule": "cosine"}, 100, 1.0),
    ({"schedule": "cosine"}, 700, 0.55),
    ({"schedule": "cosine"}, 1000, 0.1),
  ],
)
def test_schedule_by_hand(settings, step, rate):
  config = OptimizerConfig(learning_rate=1.0, warmup_steps=100, **settings)
  schedule = learning_rate_schedule(
    config, num_steps=1000, of_retriever=bool(settings)
  )
  assert float(schedule(step)) == pytest.approx(rate, abs=1e-6)


def test_each_component_has_its_rate_and_a_frozen_one_does_not_decay():
  config = OptimizerConfig(
    learning_rate=1e-3,
    warmup_steps=0,
    weight_decay=0.5,
    retriever_rate_scale=0.25,
  )
  kernel = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
  names = ("retriever", "reader")
  params = {name: {"kernel": kernel} for name in names}
  moved = {}
  for frozen in ((), ("reader",)):
    optimizer = make_optimizer(config, num_steps=1000, frozen=frozen)
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    moved[frozen] = jax.tree.map(optax.tree.norm, updates)
  assert moved[("reader",)]["reader"]["kernel"] == 0
  whole = float(moved[()]["reader"]["kernel"])
  for one in moved.values():
    norm = float(one["retriever"]["kernel"])
    assert norm == pytest.approx(whole / 4, rel=1e-5)


def test_a_tower_can_be_frozen_alone_if_the_towers_are_two():
  config = OptimizerConfig(
    learning_rate=1e-3, warmup_steps=0, frozen=["retriever/block_tower"]
  )
  optimizer = make_optimizer(config, num_steps=1000)
  kernel = np.ones(3, np.float32)
  towers = {"query_tower": {"k": kernel}, "block_tower": {"k": kernel}}
  params = {"retriever": towers, "reader": {"k": kernel}}
  updates, _ = optimizer.update(params, optimizer.init(params), params)
  moved = jax.tree.map(lambda x: bool(np.any(x)), updates)
  assert moved["retriever"] == {
    "query_tower": {"k": True},
    "block_tower": {"k": False},
  }
  assert moved["reader"] == {"k": True}
  shared = {"retriever": {"tower": {"k": kernel}}, "reader": {"k": kernel}}
  with pytest.raises(RealmError, match="shared_towers = False"):
    optimizer.init(shared)


def _drawn(seed, *, size=1.0):
  """Values by layer, of another size in each."""
  shapes = {
    "up/kernel": (128, 160),
    "down/kernel": (140, 30),
    "down/vector": 30,
  }
  rng = np.random.default_rng(seed)
  return [
    {
      name: rng.normal(0, size * layer_size, shape).astype(np.float32)
      for name, shape in shapes.items()
    }
    # The root mean square of the last is below Adafactor's least, 0.001.
    for layer_size in (1.0, 0.03, 1e-4)
  ]


def _trained(layers, gradients, *, stacked=False, **settings):
  """What four updates of ours make of layers, at a constant rate."""
  config = OptimizerConfig(
    0.01, schedule="constant", warmup_steps=0, **settings
  )
  optimizer = make_optimizer(config, num_steps=10)

  def tree_of(layers):
    trees = [nested(layer) for layer in layers]
    whole = {str(number): tree for number, tree in enumerate(trees)}
    if stacked:
      whole = {"layers": jax.tree.map(lambda *each: np.stack(each), *trees)}
    return {"reader": whole}

  params = tree_of(layers)
  state, update = optimizer.init(params), jax.jit(optimizer.update)
  for gradient in gradients:
    updates, state = update(tree_of(gradient), state, params)
    params = optax.apply_updates(params, updates)
  found, numbers = params["reader"], range(len(layers))
  if stacked:
    whole = found["layers"]
    found = {str(i): jax.tree.map(lambda x, i=i: x[i], whole) for i in numbers}
  return [flattened(found[str(i)]) for i in numbers]


def _adafactor(p, gradients):
  """One parameter by t5x's Adafactor, in float64."""
  row = column = second = 0.0
  for t, g in enumerate(np.float64(gradients), 1):
    new, square = t**-0.8, g**2 + 1e-30
    second = (1 - new) * second + new * square
    row = (1 - new) * row + new * square.mean(-1)
    column = (1 - new) * column + new * square.mean(0)
    if min(p.shape) >= 128:
      second = np.outer(row, column) / row.mean()
    update = g / np.sqrt(second)
    update /= max(1, np.sqrt(np.mean(update**2)))
    p = p - 0.01 * max(1e-3, np.sqrt(np.mean(p**2))) * update
  return p


def _adamw(p, gradients):
  """One parameter by the rule that torch documents, in float64."""
  mean = variance = 0.0
  for t, g in enumerate(np.float64(gradients), 1):
    mean, variance = 0.9 * mean + 0.1 * g, 0.999 * variance + 0.001 * g**2
    root = np.sqrt(variance / (1 - 0.999**t)) + 1e-6
    p = p - 0.01 * (mean / (1 - 0.9**t) / root + 0.5 * p)
  return p


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize(
  ("rule", "settings"),
  [
    (_adafactor, {"optimizer": "adafactor"}),
    (_adamw, {"optimizer": "adamw", "weight_decay": 0.5, "clip_norm": 1e9}),
  ],
)
def test_each_layer_follows_the_published_rule(rule, settings, stacked):
  layers = _drawn(0)
  # Updates of the second and the third step are clipped.
  gradients = [_drawn(1 + t, size=size) for t, size in enumerate((1, 4, 9, 2))]
  found = _trained(layers, gradients, stacked=stacked, **settings)
  for number, layer in enumerate(layers):
    for name, value in layer.items():
      given = [gradient[number][name] for gradient in gradients]
      expected = rule(np.float64(value), given)
      moved = abs(expected - value).max()
      np.testing.assert_allclose(
        found[number][name], expected, rtol=0, atol=1e-4 * moved
      )
