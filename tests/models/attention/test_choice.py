"""Which implementation of attention a layer runs."""

import jax.numpy as jnp
import pytest

from realm_jax.models.attention import choice
from realm_jax.models.attention.choice import is_fused
from realm_jax.models.attention.inputs import AttentionInputs, Settings
from realm_jax.models.bert import BertConfig

_ROWS, _WIDTH = 2, 128
_SETTINGS = Settings(
  head_size=64, max_positions=64, mask_value=-1e4, dropout_rate=0.0
)


def _inputs(*, length: int, num_queries: int) -> AttentionInputs:
  of_tokens = jnp.zeros((_ROWS * length, _WIDTH))
  numbers = jnp.zeros((_ROWS, length), jnp.int32)
  return AttentionInputs(
    query=of_tokens[: _ROWS * num_queries],
    key=of_tokens,
    value=of_tokens,
    biases=jnp.zeros((3, _WIDTH)),
    sequence=numbers,
    tokens=numbers[:, :num_queries].astype(jnp.uint32),
    position=numbers,
  )


@pytest.mark.parametrize(
  ("platform", "implementation", "expected"),
  [
    ("tpu", "auto", True),
    ("tpu", "plain", False),
    ("gpu", "auto", False),
    ("cpu", "auto", False),
    ("cpu", "fused", True),
  ],
)
def test_the_kernel_is_for_tpus(
  monkeypatch, platform, implementation, expected
):
  monkeypatch.setattr(choice, "platform", lambda: platform)
  inputs = _inputs(length=32, num_queries=32)
  found = is_fused(inputs, _SETTINGS, implementation=implementation)
  assert found is expected


@pytest.mark.parametrize(
  ("length", "num_queries"),
  # Only the first tokens attend; the length is no multiple of 16.
  [(32, 1), (24, 24)],
)
def test_what_the_kernel_does_not_handle_is_computed_plainly(
  length, num_queries
):
  inputs = _inputs(length=length, num_queries=num_queries)
  assert not is_fused(inputs, _SETTINGS, implementation="fused")
  context = choice.attend(inputs, _SETTINGS, implementation="fused")
  assert context.shape == (_ROWS * num_queries, _WIDTH)


def test_an_unknown_implementation_is_named():
  with pytest.raises(ValueError, match="attention='flash'; want one of auto"):
    BertConfig(attention="flash")
