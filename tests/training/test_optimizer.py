"""BERT's Adam and schedule, against the published rules in float64."""

import itertools

import jax
import numpy as np
import optax
import pytest

from benchmarks.agreement.rules import compare_adam
from realm_jax.training.optimizer import (
  OptimizerConfig,
  learning_rate_schedule,
  make_optimizer,
)


def _parameters():
  rng = np.random.default_rng(0)

  def draw(*shape):
    return rng.normal(size=shape).astype(np.float32)

  return {
    component: {
      "encoder": {
        "word_embeddings": draw(5, 3),
        "layer_0": {
          "up": {"kernel": draw(3, 4), "bias": draw(4)},
          "output_norm": {"scale": draw(3), "bias": draw(3)},
        },
        "embedding_norm": {"scale": draw(3), "bias": draw(3)},
      }
    }
    for component in ("retriever", "reader")
  }


def _gradients(params, step):
  rng = np.random.default_rng(step + 1)
  # Now and then above the clip's norm, and now and then below.
  size = 0.05 * (1 + step % 4)
  return jax.tree.map(
    lambda p: rng.normal(0, size, p.shape).astype(np.float32), params
  )


def _run(config, num_steps, *, total_steps=1000, frozen=()):
  params = _parameters()
  optimizer = make_optimizer(config, num_steps=total_steps, frozen=frozen)
  state = optimizer.init(params)

  @jax.jit
  def update(gradient, state, params):
    updates, state = optimizer.update(gradient, state, params)
    return optax.apply_updates(params, updates), state

  history = [params]
  for step in range(num_steps):
    params, state = update(_gradients(params, step), state, params)
    history.append(params)
  return history


@pytest.mark.slow
def test_equals_the_published_rule_over_fifty_steps():
  row = compare_adam(weight_decay=0.5)
  assert row.passed, row


@pytest.mark.parametrize(
  ("step", "rate"),
  [
    (0, 0.0),
    (50, 0.5),
    (99, 0.99),
    # Warm-up lies on top of a decay that is counted from step 0.
    (100, 0.9),
    (500, 0.5),
    (999, 0.001),
    (1000, 0.0),
    (1200, 0.0),
  ],
)
def test_schedule_by_hand(step, rate):
  schedule = learning_rate_schedule(
    OptimizerConfig(learning_rate=1.0, warmup_steps=100), num_steps=1000
  )
  assert float(schedule(step)) == pytest.approx(rate, abs=1e-6)


def _moved(before, after, component):
  leaves = zip(
    jax.tree.leaves(before[component]),
    jax.tree.leaves(after[component]),
    strict=True,
  )
  return max(float(np.abs(a - b).max()) for a, b in leaves)


def test_a_retriever_that_was_frozen_has_a_warm_up_of_its_own():
  config = OptimizerConfig(
    learning_rate=1e-3, warmup_steps=4, freeze_retriever_steps=6
  )
  history = _run(config, 10)
  moves = [
    _moved(before, after, "retriever")
    for before, after in itertools.pairwise(history)
  ]
  # As at the start of a run, the first step is of length zero.
  assert _moved(*history[:2], "reader") == 0 < _moved(*history[1:3], "reader")
  assert moves[:7] == [0] * 7
  assert 0 < moves[7] < moves[8] < moves[9]


def test_the_retriever_has_a_rate_of_its_own():
  slow, fast = (
    _run(
      OptimizerConfig(
        learning_rate=1e-3, warmup_steps=0, retriever_rate_scale=scale
      ),
      1,
    )
    for scale in (0.25, 1.0)
  )
  whole = _moved(*fast, "retriever")
  assert _moved(*slow, "retriever") == pytest.approx(whole / 4, rel=1e-3)
  assert _moved(*slow, "reader") == pytest.approx(_moved(*fast, "reader"))


def test_what_is_frozen_does_not_move_nor_decay():
  config = OptimizerConfig(learning_rate=1e-3, warmup_steps=0, weight_decay=0.5)
  start, end = _run(config, 1, frozen=("reader",))
  assert _moved(start, end, "reader") == 0 < _moved(start, end, "retriever")
