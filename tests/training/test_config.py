"""What no run can be is refused before anything is opened."""

import dataclasses

import pytest

from realm_jax.inputs.config import DataConfig
from realm_jax.models.bert import BertConfig
from realm_jax.models.retriever import BertRetriever
from realm_jax.training.config import (
  CheckpointConfig,
  RefreshConfig,
  TrainConfig,
)
from realm_jax.training.optimizer import OptimizerConfig
from realm_jax.training.stages.pretraining import Pretraining


def _config(**changes):
  config = TrainConfig(
    model_dir="runs/x",
    data=DataConfig(
      task="inverse_cloze",
      corpus_dir="corpus",
      batch_size=8,
      query_length=16,
      block_length=32,
    ),
    stage=Pretraining(),
    retriever=BertRetriever(BertConfig()),
    optimizer=OptimizerConfig(learning_rate=1e-3),
    num_steps=100,
  )
  return dataclasses.replace(config, **changes)


ROLLING = RefreshConfig(blocks_per_step=8)
RARE = RefreshConfig(refresh_every_steps=15)
WAITS = RefreshConfig(wait_for_snapshots=True, lag_steps=30)
KEPT = CheckpointConfig(save_every_steps=10, keep_checkpoints=2)


@pytest.mark.parametrize(
  ("changes", "named"),
  [
    (
      {"stage": Pretraining(read_gold=True), "retrieve_on_device": True},
      "RETRIEVE_ON_DEVICE",
    ),
    ({"refresh": ROLLING}, "BLOCKS_PER_STEP=8.*RETRIEVE_ON_DEVICE = True"),
    ({"refresh": WAITS, "checkpoints": KEPT}, "lag_steps=30.*LAG_STEPS"),
    ({"refresh": RARE, "checkpoints": KEPT}, "EVERY_STEPS=15 .*=10"),
  ],
)
def test_what_no_run_can_be_is_refused_with_the_setting(changes, named):
  with pytest.raises(ValueError, match=named):
    _config(**changes)


def test_objectives_that_cannot_be_are_refused():
  with pytest.raises(ValueError, match=r"SPAN_WEIGHT.*FREEZE_READER"):
    Pretraining(freeze_reader=True, span_weight=1.0)
