"""Gin files and bindings: what they bind, and how their errors read."""

import pytest

import gin
from realm_jax import configuration
from realm_jax.configuration import ConfigurationError
from realm_jax.evaluation.evaluate import evaluate
from realm_jax.evaluation.run import RunConfig
from realm_jax.inputs.config import DataConfig
from realm_jax.models.bert import BertConfig

_SIZES = """
from __gin__ import dynamic_registration
from realm_jax.models import bert
HIDDEN = 12
HEADS = %gin.REQUIRED
LAYERS = %gin.REQUIRED
bert.BertConfig.hidden_size = %HIDDEN
bert.BertConfig.num_heads = %HEADS
bert.BertConfig.num_layers = %LAYERS
"""
_GIVEN = ("HEADS = 3", "LAYERS = 1")


@pytest.fixture
def sizes(tmp_path):
  path = tmp_path / "sizes.gin"
  path.write_text(_SIZES)
  return str(path)


def _build(files, bindings=(), **kwargs):
  with configuration.parsed(BertConfig, files, bindings, **kwargs):
    return configuration.configured(BertConfig)()


def test_later_files_and_bindings_override(sizes, tmp_path):
  config = _build([sizes], _GIVEN)
  assert (config.hidden_size, config.num_heads, config.num_layers) == (12, 3, 1)
  assert _build([sizes], [*_GIVEN, "HIDDEN = 24"]).hidden_size == 24
  later = tmp_path / "later.gin"
  later.write_text("HIDDEN = 36\nHEADS = 2\nLAYERS = 4\n")
  assert _build([sizes, str(later)]).hidden_size == 36
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
  assert "no value for HEADS;" in _refused([sizes], ["LAYERS = 1"])


def test_an_unknown_macro_is_answered_with_the_near_ones(sizes):
  text = _refused([sizes], [*_GIVEN, "HIDEN = 24"])
  assert "--gin.HIDEN" in text
  assert "did you mean HIDDEN?" in text


@pytest.mark.parametrize(
  "value", ["", "a b", "nan", "1.5", "None", "True", "%NAME", "'x'", "'x", "("]
)
def test_a_value_that_is_none_for_a_setting_is_refused(sizes, tmp_path, value):
  name = tmp_path / "name.gin"
  name.write_text("NAME = 'x'\n")
  refused = _refused([sizes, str(name)], [*_GIVEN, f"HIDDEN = {value}"])
  if value in ("'x", "("):
    assert "the gin configuration is wrong" in refused
  else:
    assert ("NAME" if value == "%NAME" else "HIDDEN") in refused
    assert value.strip("%'") in refused


_EVALUATION = {
  "MODEL_DIR": "runs/qa",
  "CORPUS_DIR": "'corpus'",
  "QUESTIONS": "test.jsonl",
  "OUTPUT_DIR": "out",
}


@pytest.mark.parametrize(
  ("name", "typed", "read"),
  [
    ("MODEL_DIR", "runs/qa", lambda source, _: source.model_dir),
    ("CHECKPOINT_STEP", "best", lambda source, _: source.checkpoint_step),
    # Items of a dictionary, and one that is a parameter, too.
    ("QUESTIONS", "a/b.jsonl", lambda _, data: data.question_files["test"]),
    ("SPLIT", "dev[:10%]", lambda _, data: next(iter(data.question_files))),
    ("DataConfig.task", "quiz", lambda _, data: data.task),
  ],
)
def test_a_text_needs_no_quotes(name, typed, read):
  for value in (typed, repr(typed), f'"{typed}"'):
    bindings = [f"{k} = {v}" for k, v in {**_EVALUATION, name: value}.items()]
    with configuration.parsed(
      evaluate, ["gin/models/tiny.gin", "gin/runs/eval.gin"], bindings
    ):
      source = configuration.configured(RunConfig)()
      data = configuration.configured(DataConfig)()
    assert read(source, data) == typed


def test_a_literal_or_a_reference_is_no_text():
  bindings = [f"{name} = {value}" for name, value in _EVALUATION.items()]
  for value, step in (("12", 12), ("None", None), ("%NUM_SEARCHED", 20)):
    with configuration.parsed(
      evaluate,
      ["gin/models/tiny.gin", "gin/runs/eval.gin"],
      [*bindings, f"CHECKPOINT_STEP = {value}"],
    ):
      source = configuration.configured(RunConfig)()
    assert source.checkpoint_step == step


def test_a_file_or_a_module_that_is_not_there_is_named(tmp_path):
  path = tmp_path / "typo.gin"
  path.write_text(
    "from __gin__ import dynamic_registration\n"
    "from realm_jax.models import brt\n"
  )
  assert "brt" in _refused([str(path)])
  assert "nowhere.gin" in _refused([str(tmp_path / "nowhere.gin")])


def test_the_callers_own_gin_configuration_is_restored(sizes, tmp_path):
  gin.clear_config()
  try:
    gin.parse_config(["OWN = 5"])
    readers = list(gin.config._FILE_READERS)
    gin.add_config_file_search_path("own")
    gin.finalize()
    with configuration.parsed(BertConfig, [sizes], _GIVEN):
      # Parsing in the block of another begins with nothing, too.
      with configuration.parsed(None, []):
        assert "BertConfig" not in gin.config_str()
      assert configuration.configured(BertConfig)().hidden_size == 12
    with pytest.raises(ConfigurationError):
      _build([sizes], ["HEDS = 1"])
    assert gin.query_parameter("OWN/gin.macro.value") == 5
    assert gin.config_is_locked()
    assert gin.config._LOCATION_PREFIXES[-1] == "own"
    assert readers == gin.config._FILE_READERS
  finally:
    gin.clear_config()
    gin.config._LOCATION_PREFIXES.remove("own")
