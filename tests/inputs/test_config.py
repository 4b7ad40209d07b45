"""What gin binds wrongly is named, with what was wanted and the binding."""

import copy
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
    ({"batch_size": "x"}, r"batch_size='x'; want an integer .* BATCH_SIZE"),
    ({"batch_size": 0}, "batch_size=0; want an integer of at least 1: change"),
    ({"batch_size": True}, "batch_size=True; want an integer"),
    ({"batch_size": 4.0}, r"batch_size=4\.0; want an integer"),
    ({"query_length": 2}, "query_length=2; .* at least 3: .* QUERY_LENGTH"),
    ({"query_length": [8, 16]}, r"query_length=\[8, 16\]; want an integer"),
    ({"block_length": None}, "block_length=None; .* BLOCK_LENGTH"),
    ({"seed": "0"}, "seed='0'; want an integer: change SEED"),
    ({"corpus_version": "1"}, "corpus_version='1'; .* DataConfig.corpus_ver"),
    ({"max_masks": 0}, "max_masks=0; want an integer of at least 1"),
    ({"task": None}, "task=None; want a name: change TASK"),
    ({"split": ""}, "split=''; want a name"),
    ({"question_files": "q.jsonl"}, r"question_files='q.jsonl'; want a dict"),
    ({"task_modules": "mine"}, r"want a list, such as \[\"mine\"\]"),
  ],
)
def test_wrong_values_are_explained(fields, said):
  # The tests' check of annotations would refuse some before the config does.
  config = copy.copy(GOOD)
  for name, value in fields.items():
    object.__setattr__(config, name, value)
  with pytest.raises(ValueError, match=said):
    config.__post_init__()


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
