"""Sizes that cannot be are named, with what was wanted and the binding."""

import dataclasses

import pytest

from realm_jax.inputs.config import DataConfig

GOOD = DataConfig(
  task="open_qa",
  corpus_dir="corpus",
  batch_size=4,
  query_length=16,
  block_length=32,
)


@pytest.mark.parametrize(
  ("fields", "said"),
  [
    ({"batch_size": 0}, "batch_size=0; want 1 or more: change BATCH_SIZE"),
    ({"query_length": 2}, "query_length=2; want 3 or more: .* QUERY_LENGTH"),
    ({"corpus_version": -1}, "corpus_version=-1; .* DataConfig.corpus_ver"),
    ({"max_masks": 0}, "max_masks=0; want 1 or more: .* DataConfig.max"),
  ],
)
def test_wrong_values_are_explained(fields, said):
  with pytest.raises(ValueError, match=said):
    dataclasses.replace(GOOD, **fields)


def test_every_feature_of_the_tasks_has_a_length():
  config = dataclasses.replace(GOOD, max_masks=3, other_lengths={"table": 7})
  assert config.lengths == {
    "query": 16,
    "block": 32,
    "mask_positions": 3,
    "mask_targets": 3,
    "mask_weights": 3,
    "table": 7,
  }
