"""A row's bindings over a recipe of which the tests know the numbers."""

import pytest

from realm_jax.ablation.pretraining import resolve
from realm_jax.ablation.rows import ROWS
from realm_jax.inputs.config import DataConfig
from realm_jax.models.bert import BertConfig
from realm_jax.models.retriever import Retriever
from realm_jax.training.config import (
  CheckpointConfig,
  RefreshConfig,
  TrainConfig,
)
from realm_jax.training.optimizer import OptimizerConfig
from realm_jax.training.stages.pretraining import Pretraining

_ROWS = {row.name: row for row in ROWS}


def _recipe(num_steps, save_every):
  """Reads bindings over a recipe of so many steps."""

  def read(bindings):
    return TrainConfig(
      "run",
      DataConfig(
        "corpus", task="t", batch_size=1, query_length=4, block_length=4
      ),
      Pretraining(num_candidates=bindings.get("NUM_CANDIDATES", 8)),
      Retriever(BertConfig()),
      OptimizerConfig(learning_rate=1.0),
      num_steps,
      checkpoints=CheckpointConfig(
        bindings.get("SAVE_EVERY_STEPS", save_every)
      ),
      refresh=RefreshConfig(
        wait_for_generations=bindings["WAIT_FOR_GENERATIONS"],
        lag_steps=bindings.get("LAG_STEPS", 10**6),
        refresh_every_steps=bindings.get("REFRESH_EVERY_STEPS"),
      ),
    )

  return read


def test_multiples_are_of_what_the_recipe_binds():
  found = resolve(_ROWS["stale_index"], _recipe(10_000, 40))
  assert found.bindings == {
    "WAIT_FOR_GENERATIONS": True,
    "LAG_STEPS": 40,
    "REFRESH_EVERY_STEPS": 1200,
  }
  assert found.config.refresh_every_steps == 1200
  # The sweep saves more often, and its lag follows.
  swept = resolve(_ROWS["refresh_100"], _recipe(10_000, 40)).config
  assert swept.checkpoints.save_every_steps == swept.refresh.lag_steps == 50
  assert swept.refresh_every_steps == 100


@pytest.mark.parametrize("num_steps, never", [(1240, True), (1241, False)])
def test_a_run_without_a_second_generation_is_never_refreshed(num_steps, never):
  # That of checkpoint 1200 is due at step 1240, the last being num_steps - 1.
  found = resolve(_ROWS["stale_index"], _recipe(num_steps, 40))
  assert found.is_never_refreshed == never


def test_all_that_is_never_refreshed_trains_alike():
  read = _recipe(110, 40)
  names = ("stale_index", "refresh_100", "refresh_400", "refresh_never")
  found = [resolve(_ROWS[name], read) for name in names]
  assert all(row.is_never_refreshed for row in found)
  (key,) = {row.key for row in found}
  assert key != resolve(_ROWS["refresh_50"], read).key
  # The first distance of checkpoints, in the recipe, that is beyond the end.
  assert found[0].bindings["REFRESH_EVERY_STEPS"] == 120


def test_a_row_that_binds_what_the_recipe_has_is_realm():
  read = _recipe(1000, 50)
  keys = {name: resolve(row, read).key for name, row in _ROWS.items()}
  same = {name for name, key in keys.items() if key == keys["realm"]}
  assert {"candidates_8", "refresh_50"} < same
  assert not same & {"candidates_4", "refresh_100", "stale_index"}
