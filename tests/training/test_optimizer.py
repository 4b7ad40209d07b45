"""BERT's Adam and schedule, against the published rules in float64."""

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
