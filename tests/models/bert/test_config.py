"""The sizes of BERT, and which are refused."""

import jax
import pytest

from realm_jax.models.bert.config import REMAT_POLICIES, BertConfig


def test_every_policy_is_one_of_jaxs():
  for name in REMAT_POLICIES:
    assert callable(getattr(jax.checkpoint_policies, name))


def test_for_vocabulary_fills_in_what_is_unset():
  config = BertConfig().for_vocabulary(vocab_size=50, separator_id=7)
  assert (config.vocab_size, config.separator_id) == (50, 7)
  assert config.for_vocabulary(vocab_size=50, separator_id=7) == config


@pytest.mark.parametrize(
  ("given", "message"),
  [
    ({"vocab_size": 30522}, r"vocab_size=30522.*vocabulary has 50"),
    ({"separator_id": 102}, r"separator_id=102.*vocabulary has 7"),
  ],
)
def test_another_vocabulary_is_refused(given, message):
  with pytest.raises(ValueError, match=message):
    BertConfig(**given).for_vocabulary(vocab_size=50, separator_id=7)


@pytest.mark.parametrize(
  ("given", "message"),
  [
    ({"hidden_size": 10, "num_heads": 4}, "hidden_size=10.*num_heads=4"),
    ({"activation": "relu"}, "activation='relu'.*gelu_tanh"),
    ({"remat_policy": "some"}, "remat_policy='some'.*nothing_saveable"),
  ],
)
def test_impossible_sizes_are_refused(given, message):
  with pytest.raises(ValueError, match=message):
    BertConfig(**given)
