"""Gin files and bindings: what they bind, and how their errors read."""

from pathlib import Path

import pytest

import gin
from realm_jax import configuration
from realm_jax.configuration import ConfigurationError
from realm_jax.evaluation.evaluate import evaluate
from realm_jax.evaluation.run import RunConfig
from realm_jax.indexes.bm25 import Bm25Config
from realm_jax.inputs.config import DataConfig
from realm_jax.models.bert import BertConfig
from realm_jax.snapshots.build import SnapshotConfig
from realm_jax.snapshots.index_builder import build_index
from realm_jax.training.config import TrainConfig

_GIVEN = ("HEADS = 3", "LAYERS = 1")


@pytest.fixture
def sizes(tmp_path):
  path = tmp_path / "sizes.gin"
  path.write_text("""
from __gin__ import dynamic_registration
from realm_jax.models import bert
HIDDEN = 12
HEADS = %gin.REQUIRED
LAYERS = %gin.REQUIRED
bert.BertConfig.hidden_size = %HIDDEN
bert.BertConfig.num_heads = %HEADS
bert.BertConfig.num_layers = %LAYERS
""")
  return str(path)


def _build(files, bindings=()):
  return configuration.parsed(BertConfig, files, bindings).build(BertConfig)


def test_later_files_and_bindings_override(sizes, tmp_path):
  later = tmp_path / "later.gin"
  later.write_text("HIDDEN = 36\nHEADS = 2\nLAYERS = 4\n")
  config = _build([sizes, str(later)], ["HEADS = 3"])
  assert (config.hidden_size, config.num_heads, config.num_layers) == (36, 3, 4)
  # What no file binds keeps its default.
  assert config.max_positions == 512


def _refused(files, bindings=()):
  with pytest.raises(ConfigurationError) as error:
    _build(files, bindings)
  return str(error.value)


def test_all_that_must_be_given_is_named_at_once(sizes):
  text = _refused([sizes])
  assert "no value for HEADS, LAYERS" in text
  assert "--gin.HEADS=VALUE --gin.LAYERS=VALUE" in text


def test_what_is_wrong_or_not_there_is_named(sizes, tmp_path):
  text = _refused([sizes], [*_GIVEN, "HIDEN = 24"])
  assert "--gin.HIDEN" in text
  assert "did you mean HIDDEN?" in text
  path = tmp_path / "typo.gin"
  path.write_text(
    "from __gin__ import dynamic_registration\n"
    "from realm_jax.models import brt\n"
  )
  assert "brt" in _refused([str(path)])
  said = "HIDDEN=True: BertConfig.hidden_size wants an integer"
  assert said in _refused([sizes], [*_GIVEN, "HIDDEN = True"])


_EVALUATION = {
  "MODEL_DIR": "runs/qa",
  "CORPUS_DIR": "'corpus'",
  "QUESTIONS": "test.jsonl",
  "OUTPUT_DIR": "out",
}


@pytest.mark.parametrize(
  ("name", "typed", "value"),
  [
    ("MODEL_DIR", "runs/qa", "runs/qa"),
    # Items of a dictionary, too.
    ("QUESTIONS", "a/b.jsonl", "a/b.jsonl"),
    ("SPLIT", "dev[:10%]", "dev[:10%]"),
    # A literal or a reference is no text.
    ("CHECKPOINT_STEP", "best", "best"),
    ("CHECKPOINT_STEP", "12", 12),
    ("CHECKPOINT_STEP", "%NUM_SEARCHED", 20),
  ],
)
def test_a_text_needs_no_quotes(name, typed, value):
  bindings = [f"{k} = {v}" for k, v in {**_EVALUATION, name: typed}.items()]
  found = configuration.parsed(
    evaluate, ["gin/models/tiny.gin", "gin/runs/eval.gin"], bindings
  )
  run, data = found.build(RunConfig), found.build(DataConfig)
  ((split, questions),) = data.question_files.items()
  read = {
    "MODEL_DIR": run.model_dir,
    "CHECKPOINT_STEP": run.checkpoint_step,
    "QUESTIONS": questions,
    "SPLIT": split,
  }
  assert read[name] == value


def test_the_callers_own_gin_configuration_is_left_alone(sizes):
  gin.clear_config()
  try:
    gin.parse_config(["OWN = 5"])
    before = gin.config_str()
    assert _build([sizes], _GIVEN).hidden_size == 12
    assert gin.config_str() == before
  finally:
    gin.clear_config()


# --- Names in capitals, which set the fields of the same name ---------------

_MODEL = "gin/models/tiny.gin"
_DIRECTORIES = ["MODEL_DIR = 'run'", "CORPUS_DIR = 'corpus'"]


def _trained(*bindings) -> TrainConfig:
  files = [_MODEL, "gin/runs/pretrain.gin"]
  found = configuration.parsed(TrainConfig, files, [*_DIRECTORIES, *bindings])
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
  bindings = [*_DIRECTORIES, "INDEX = %BM25", "K1 = 1.5"]
  found = configuration.parsed(build_index, files, bindings)
  config = found.build(SnapshotConfig)
  assert config.index == Bm25Config(k1=1.5)


def test_gin_help_has_values_types_and_meanings():
  files = [_MODEL, "gin/runs/pretrain.gin"]
  shown = configuration.parsed(TrainConfig, files, _DIRECTORIES).table()
  lines = shown.splitlines()
  where = lines.index(
    "NUM_STEPS = 200000 (an integer from 0 to 2147483647; "
    "TrainConfig.num_steps)"
  )
  assert lines[where + 1].startswith("    Steps of the whole run;")


def test_a_file_in_another_encoding_is_named(sizes, tmp_path):
  text = Path(sizes).read_text() + "# é\n"
  other = tmp_path / "other.gin"
  # Some editors write a byte order mark.
  other.write_text(text, encoding="utf-8-sig")
  assert _build([str(other)], _GIVEN) == _build([sizes], _GIVEN)
  for encoding in ("utf-16", "latin-1"):
    other.write_text(text, encoding=encoding)
    with pytest.raises(ConfigurationError, match=r"other\.gin is not UTF-8"):
      _build([str(other)], _GIVEN)
