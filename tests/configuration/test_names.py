"""Names in capitals, which set the fields of the same name."""

from realm_jax import configuration
from realm_jax.indexes.bm25 import Bm25Config
from realm_jax.snapshots.build import SnapshotConfig
from realm_jax.snapshots.index_builder import build_index
from realm_jax.training.config import TrainConfig

_MODEL = "gin/models/tiny.gin"
_GIVEN = ["MODEL_DIR = 'run'", "CORPUS_DIR = 'corpus'"]


def _trained(*bindings) -> TrainConfig:
  files = [_MODEL, "gin/runs/pretrain.gin"]
  found = configuration.parsed(TrainConfig, files, [*_GIVEN, *bindings])
  return found.build(TrainConfig)


def test_a_name_sets_the_field_that_no_file_mentions():
  assert _trained("NUM_SPARE = 5").stage.num_spare == 5
  # Wherever it is: in a settings class of another module.
  assert _trained("WEIGHT_DECAY = 0.5").optimizer.weight_decay == 0.5
  # What is bound to a class comes before the name.
  config = _trained("NUM_SPARE = 5", "pretraining.Pretraining.num_spare = 7")
  assert config.stage.num_spare == 7


def test_what_a_binding_refers_to_has_names_as_well():
  files = [_MODEL, "gin/runs/build_index.gin"]
  bindings = [*_GIVEN, "INDEX = %BM25", "K1 = 1.5"]
  found = configuration.parsed(build_index, files, bindings)
  config = found.build(SnapshotConfig)
  assert config.index == Bm25Config(k1=1.5)


def test_gin_help_has_values_types_and_meanings():
  files = [_MODEL, "gin/runs/pretrain.gin"]
  shown = configuration.parsed(TrainConfig, files, _GIVEN).table()
  lines = shown.splitlines()
  where = lines.index(
    "NUM_STEPS = 200000 (an integer of at least 0; TrainConfig.num_steps)"
  )
  assert lines[where + 1].startswith("    Steps of the whole run;")
