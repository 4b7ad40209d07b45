"""What no run can be is refused before anything is opened."""

import dataclasses

import pytest

from realm_jax.inputs.config import DataConfig
from realm_jax.models.bert import BertConfig
from realm_jax.models.retriever import Retriever
from realm_jax.training.config import (
  CheckpointConfig,
  RefreshConfig,
  TrainConfig,
)
from realm_jax.training.optimizer import OptimizerConfig
from realm_jax.training.stages.inverse_cloze import InverseCloze
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
    retriever=Retriever(BertConfig()),
    optimizer=OptimizerConfig(learning_rate=1e-3),
    num_steps=100,
  )
  return dataclasses.replace(config, **changes)


def test_only_pre_training_retrieves_inside_its_step():
  assert _config(retrieve_on_device=True).retrieve_on_device
  with pytest.raises(ValueError, match=r"InverseCloze.*RETRIEVE_ON_DEVICE"):
    _config(stage=InverseCloze(), retrieve_on_device=True)
  for name in ("null_block", "drop_source"):
    ablated = Pretraining(**{name: False})
    with pytest.raises(ValueError, match=r"with the null block and without"):
      _config(stage=ablated, retrieve_on_device=True)


def test_a_rolling_refresh_needs_retrieval_on_the_devices():
  refresh = RefreshConfig(blocks_per_step=8)
  with pytest.raises(
    ValueError, match=r"BLOCKS_PER_STEP=8.*RETRIEVE_ON_DEVICE = True"
  ):
    _config(refresh=refresh)
  with pytest.raises(ValueError, match="set WAIT_FOR_GENERATIONS = False"):
    _config(
      retrieve_on_device=True,
      refresh=dataclasses.replace(refresh, wait_for_generations=True),
    )


def test_the_lag_of_a_waiting_run_fits_its_checkpoints():
  waits = RefreshConfig(wait_for_generations=True, lag_steps=30)
  kept = CheckpointConfig(save_every_steps=10, keep_checkpoints=2)
  with pytest.raises(ValueError, match="lag_steps=30 exceeds the 2 checkpoin"):
    _config(refresh=waits, checkpoints=kept)
  # A run that does not wait, or has no index, has no lag to fit.
  _config(
    refresh=dataclasses.replace(waits, wait_for_generations=False),
    checkpoints=kept,
  )
  _config(refresh=waits, checkpoints=kept, stage=InverseCloze())


def test_generations_are_used_at_the_distance_of_some_checkpoints():
  kept = CheckpointConfig(save_every_steps=10)
  assert _config(checkpoints=kept).refresh_every_steps == 10
  rare = RefreshConfig(refresh_every_steps=300)
  assert _config(refresh=rare, checkpoints=kept).refresh_every_steps == 300
  with pytest.raises(ValueError, match=r"EVERY_STEPS=15 is no multiple .*=10"):
    _config(refresh=RefreshConfig(refresh_every_steps=15), checkpoints=kept)


def test_the_reader_may_start_from_another_checkpoint():
  shared = CheckpointConfig(initial_checkpoint="runs/ict")
  assert shared.source_of("retriever") == shared.source_of("reader")
  other = CheckpointConfig(
    initial_checkpoint="runs/ict", initial_reader="runs/reading"
  )
  assert other.source_of("retriever") == "runs/ict"
  assert other.source_of("reader") == "runs/reading"
