"""The sizes of BERT, and which are refused."""

import jax

from realm_jax.models.bert.config import REMAT_POLICIES, BertConfig


def test_every_policy_is_one_of_jaxs():
  for name in REMAT_POLICIES:
    assert callable(getattr(jax.checkpoint_policies, name))


def test_for_vocabulary_fills_in_what_is_unset():
  config = BertConfig().for_vocabulary(vocab_size=50, separator_id=7)
  assert (config.vocab_size, config.separator_id) == (50, 7)
  assert config.for_vocabulary(vocab_size=50, separator_id=7) == config
