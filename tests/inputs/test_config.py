"""Sizes that cannot be are named, with what was wanted and the binding."""

import dataclasses

from realm_jax.inputs.config import DataConfig

GOOD = DataConfig(
  task="open_qa",
  corpus_dir="corpus",
  batch_size=4,
  query_length=16,
  block_length=32,
)


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
