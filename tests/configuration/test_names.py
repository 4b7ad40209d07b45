"""Names in capitals, which set the fields of the same name."""

import collections
import contextlib

from realm_jax import configuration, settings
from realm_jax.configuration import names
from realm_jax.configuration.parsing import names_of
from realm_jax.training.config import TrainConfig
from tests.conftest import PROJECT_DIR

_MODEL = "gin/models/tiny.gin"
_GIVEN = ["MODEL_DIR = 'run'", "CORPUS_DIR = 'corpus'"]
_RECIPES = sorted(
  str(path.relative_to(PROJECT_DIR))
  for path in (PROJECT_DIR / "gin/runs").glob("*.gin")
)
# Names with one meaning that commands take in different ranges or types.
_SHARED = {"CHECKPOINT_STEP"}


def _trained(*bindings: str) -> TrainConfig:
  with configuration.parsed(
    [_MODEL, "gin/runs/pretrain.gin"], [*_GIVEN, *bindings]
  ):
    return configuration.configured(TrainConfig)()


def test_a_name_sets_the_field_that_no_file_mentions():
  assert _trained().stage.num_spare == 2
  assert _trained("NUM_SPARE = 5").stage.num_spare == 5
  # Wherever it is: in a settings class of another module.
  assert _trained("WEIGHT_DECAY = 0.5").optimizer.weight_decay == 0.5


def test_what_is_bound_to_a_class_comes_before_the_name():
  config = _trained("NUM_SPARE = 5", "pretraining.Pretraining.num_spare = 7")
  assert config.stage.num_spare == 7


def test_what_a_binding_refers_to_has_names_as_well():
  with configuration.parsed(
    [_MODEL, "gin/runs/build_index.gin"],
    [*_GIVEN, "INDEX = %BM25", "K1 = 1.5"],
  ):
    text = configuration.text()
  assert "Bm25Config.k1 = %K1" in text


def test_a_name_has_one_type_in_all_recipes():
  types = collections.defaultdict(set)
  for recipe in _RECIPES:
    with (
      # The ablation's needs more than a model.
      contextlib.suppress(configuration.ConfigurationError),
      configuration.parsed([_MODEL, recipe], without_data=True),
    ):
      for one in names.parameters():
        # A range may be narrower, and None may mean a default.
        wanted = settings.describe(one.annotation).partition(" of at")[0]
        types[one.macro].add(wanted.partition(" or None")[0])
  assert len(types) > 80
  several = {name: kinds for name, kinds in types.items() if len(kinds) > 1}
  assert several.keys() <= _SHARED, several


def test_gin_help_has_values_types_and_meanings():
  shown = names_of([_MODEL, "gin/runs/pretrain.gin"], search_paths=["."])
  lines = shown.splitlines()
  where = lines.index(
    "NUM_STEPS = 200000 (an integer of at least 0; TrainConfig.num_steps)"
  )
  assert lines[where + 1].startswith("    Steps of the whole run;")
  assert any(line.startswith("SEED = 0 (") for line in lines)
