"""Programs of equal functions are traced once."""

import jax
import jax.numpy as jnp

from realm_jax.models.bert import BertConfig
from realm_jax.partitioning import rules
from realm_jax.partitioning.jit_cache import shared_partial

_traced = []


def _scaled(config, values):
  _traced.append(config)
  return config.hidden_size * values


def test_an_equal_configuration_finds_the_program_of_another():
  _traced.clear()
  values = jnp.arange(3)
  for hidden_size in (24, 24, 36):
    function = shared_partial(_scaled, BertConfig(hidden_size=hidden_size))
    assert jax.jit(function)(values).tolist() == [
      0,
      hidden_size,
      2 * hidden_size,
    ]
  assert [config.hidden_size for config in _traced] == [24, 36]


def test_other_rules_make_another_function_of_the_same_name():
  none = tuple((name, None) for name, _ in rules.LOGICAL_AXIS_RULES)
  function = rules.under(rules.LOGICAL_AXIS_RULES, _scaled)
  assert rules.under(rules.LOGICAL_AXIS_RULES, _scaled) is function
  assert rules.under(none, _scaled) is not function
  # By which profiles and XLA's dumps call it.
  assert function.__name__ == "_scaled"
